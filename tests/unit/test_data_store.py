"""Token shards on this machine: found and verified, samples read from them, and every way in which they can be wrong."""

from __future__ import annotations

import http.server
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import pytest

from node.data.files import BlobFiles, digest_of
from node.data.remote import SourceError
from node.data.store import SCAN_TOKENS, open_token_store
from node.ports import UnusableError
from protocol.manifest import FileRef, Manifest
from protocol.sampling import train_samples
from tests.tools.data_world import VOCAB, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# ---- samples ----


def test_samples_are_windows_of_the_concatenated_shards(world: World) -> None:
    manifest, store = world.manifest(), world.open()
    text = np.concatenate([world.parts["a"], world.parts["b"]])
    seen = []
    for step in range(1, 8):
        for microbatch in range(4):
            rows = store.microbatch(step, microbatch)
            assert (rows.shape, rows.dtype) == ((3, 17), np.int64)
            for row, sample in zip(rows, train_samples(manifest, step, microbatch), strict=True):
                assert row.tolist() == text[16 * sample.window : 16 * sample.window + 17].tolist()
                seen.append(sample.window)
    assert set(seen) == set(range(62))  # also the windows across the border of the shards, at token 700


def test_held_out_samples_come_in_order(world: World) -> None:
    rows = np.concatenate([world.open().validation(m) for m in range(3)])
    text = world.parts["v"]
    assert rows.tolist() == [text[16 * (i % 6) : 16 * (i % 6) + 17].tolist() for i in range(9)]


def test_four_byte_ids(tmp_path: Path) -> None:
    world = World(tmp_path)
    ids = np.arange(100, dtype="<u4") + 70_000
    ids.tofile(world.path("wide"))
    ref = {
        "digest": blake3.blake3(ids.tobytes()).hexdigest(),
        "num_bytes": 400,
        "num_tokens": 100,
        "sources": ["data/wide.tokens"],
    }
    model = world.manifest().model.model_dump() | {"vocab_size": 70_100}
    store = world.open(model=model, data={"dtype": "uint32", "train": [ref]})
    assert store.microbatch(1, 0).min() >= 70_000


# ---- bad data ----


def test_a_vocabulary_one_below_the_largest_id(world: World) -> None:
    ids = world.parts["a"]
    ids[:] = 5
    ids[123] = VOCAB
    ids[200] = VOCAB + 1
    ids.tofile(world.path("a"))
    says = world.refusal()
    assert re.match(
        r"data\.train\[0\]: /.*/data/a\.tokens: token 123 \(byte 246\) has id 64, but model\.vocab_size is 64;", says
    )
    ids[123], ids[200] = VOCAB - 1, VOCAB - 1
    ids.tofile(world.path("a"))
    world.open()


def test_a_rare_bad_id_in_the_middle_of_a_large_shard(world: World) -> None:
    ids = np.zeros(3 * SCAN_TOKENS, np.uint16)
    place = SCAN_TOKENS + 77
    ids[place] = 65_535
    world.parts["b"] = ids
    ids.tofile(world.path("b"))
    assert f"data/b.tokens: token {place} (byte {2 * place}) has id 65535" in world.refusal()


def test_a_bad_id_in_held_out_data(world: World) -> None:
    world.parts["v"][99] = 64
    world.parts["v"].tofile(world.path("v"))
    assert re.match(r"data\.validation\[0\]: .*v\.tokens: token 99 ", world.refusal())


def test_remembered_ids_are_held_against_another_vocabulary(world: World) -> None:
    world.open()
    model = world.manifest().model.model_dump() | {"vocab_size": 60}
    assert re.search(r"a\.tokens: token \d+ \(byte \d+\) has id 6[0-3], but", world.refusal(model=model))


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _odd(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0\0")


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _gone(path: Path) -> None:
    path.unlink()


BREAKAGES = [
    (_empty, r"data\.train\[1\]: .*/data/b\.tokens is empty, not 602 bytes; restore it"),
    (_directory, r"data\.train\[1\]: .*/data/b\.tokens is a directory, not a file"),
    (_odd, r"data\.train\[1\]: .*/data/b\.tokens is truncated: 601 bytes, not 602; restore it"),
    (_truncated, r"data\.train\[1\]: .*/data/b\.tokens is truncated: 502 bytes, not 602"),
    (_longer, r"data\.train\[1\]: .*/data/b\.tokens is too long: 604 bytes, not 602"),
    (_flipped, r"data\.train\[1\]: .*/data/b\.tokens is not the file of the manifest: its digest is [0-9a-f]{16}…, not"),
    (_fifo, r"data\.train\[1\]: .*/data/b\.tokens is not a regular file"),
    (_gone, r"data\.train\[1\]: [0-9a-f]{16}… is missing: not at .*/data/b\.tokens, .*/cache/.*\.blob; put it there"),
]
IDS = [breakage.__name__ for breakage, _ in BREAKAGES]
IN_PLACE = [(breakage, says) for breakage, says in BREAKAGES if breakage not in (_directory, _fifo, _gone)]
IN_PLACE_IDS = [breakage.__name__ for breakage, _ in IN_PLACE]


@pytest.mark.parametrize(("breakage", "says"), BREAKAGES, ids=IDS)
def test_a_broken_shard_is_refused(world: World, breakage: Any, says: str) -> None:
    breakage(world.path("b"))
    assert re.match(says, world.refusal())


@pytest.mark.parametrize(("breakage", "says"), IN_PLACE, ids=IN_PLACE_IDS)
def test_a_shard_broken_after_it_was_verified_is_refused(world: World, breakage: Any, says: str) -> None:
    world.open()
    breakage(world.path("b"))
    assert re.match(says, world.refusal())


@pytest.mark.parametrize(("breakage", "says"), IN_PLACE, ids=IN_PLACE_IDS)
def test_a_shard_broken_while_running_is_refused(world: World, breakage: Any, says: str) -> None:
    store = world.open()

    def an_epoch() -> None:
        for step in range(1, 7):
            for microbatch in range(4):
                store.microbatch(step, microbatch)

    an_epoch()
    breakage(world.path("b"))
    with pytest.raises(UnusableError, match=r"b\.tokens was replaced while the node was running: " + says):
        an_epoch()


def test_an_unreadable_shard(world: World) -> None:
    if os.geteuid() == 0:
        world.path("b").unlink()
        world.path("b").symlink_to("b.tokens")  # root reads everything: a loop of links instead
    else:
        world.path("b").chmod(0)
    assert re.search(r"b\.tokens cannot be read \((Permission denied|Too many levels)", world.refusal())


def test_the_same_contents_put_again_while_running_are_fine(world: World) -> None:
    store = world.open()
    before = [store.microbatch(step, 0).tolist() for step in range(1, 6)]
    for name in ("a", "b"):
        copy = world.root / "copy"
        copy.write_bytes(world.path(name).read_bytes())
        copy.replace(world.path(name))
    assert [store.microbatch(step, 0).tolist() for step in range(1, 6)] == before


def test_a_manifest_that_contradicts_itself(world: World) -> None:
    shard = world.shard("a").model_dump() | {"num_tokens": 699}
    assert "num_bytes 1400 is not num_tokens 699 x 2" in world.refusal(data={"train": [shard]})


# ---- where files are found ----


def test_files_are_hashed_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []
    monkeypatch.setattr("node.data.files.digest_of", lambda path: hashed.append(path) or digest_of(path))
    world.open()
    assert len(hashed) == 3
    world.open()
    assert len(hashed) == 3
    os.utime(world.path("a"))
    world.open()
    assert hashed[3:] == [world.path("a")]


@pytest.mark.parametrize("memory", [b"", b"[]", b"{", b'{"files": {"/x": [1]}, "largest_ids": 3}', b"\xff"])
def test_a_strange_memory_file_counts_as_none(world: World, memory: bytes) -> None:
    world.open()
    (world.root / "cache" / "verified.json").write_bytes(memory)
    world.open()
    assert len(json.loads((world.root / "cache" / "verified.json").read_bytes())["files"]) == 6, "each has two names"


def test_a_cache_that_cannot_be_written_only_costs_time(world: World) -> None:
    (world.root / "cache").write_bytes(b"a file, not a folder")
    world.open()


def test_later_sources_stand_in_for_broken_ones(world: World) -> None:
    good = world.root / "elsewhere.tokens"
    good.write_bytes(world.path("a").read_bytes())
    _flipped(world.path("a"))
    for source in (str(good), good.as_uri()):
        shard = world.shard("a").model_copy(update={"sources": ("data/a.tokens", source)})
        assert world.blobs().find(shard) == good


def test_relative_sources_are_tried_in_every_base(world: World) -> None:
    blobs = BlobFiles(world.root / "cache", (world.root / "nowhere", world.root))
    assert blobs.find(world.shard("a")) == world.path("a")


@pytest.mark.parametrize("source", ["data/a\0.tokens", "data/a.tokens/x", "file://elsewhere/x", ""])
def test_strange_sources_are_no_files(world: World, source: str) -> None:
    shard = world.shard("a").model_copy(update={"sources": (source,)})
    if source:
        assert world.blobs().find(shard) is None
    else:
        with pytest.raises(UnusableError, match="is a directory"):
            world.blobs().find(shard)


def test_missing_and_served(world: World) -> None:
    manifest, blobs = world.manifest(), world.blobs()
    assert blobs.missing(manifest) == []
    shard = world.shard("b")
    assert blobs.blob_path(shard.digest) == world.path("b")
    _truncated(world.path("b"))
    assert blobs.blob_path(shard.digest) is None
    assert blobs.missing(manifest) == [shard]
    world.path("b").unlink()
    assert blobs.missing(manifest) == [shard]
    assert blobs.blob_path("f" * 64) is None


def test_what_peers_send_becomes_a_file_of_the_cache(world: World) -> None:
    shard, data = world.shard("b"), world.parts["b"].tobytes()
    world.path("b").unlink()
    blobs = world.blobs()
    with blobs.writer(shard) as writer:
        writer.write(data[:100])
        writer.write(data[100:])
        path = writer.commit()
    assert path.read_bytes() == data
    assert blobs.blob_path(shard.digest) == path
    assert world.blobs().blob_path(shard.digest) == path
    open_token_store(world.manifest(), world.blobs())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data + b"x", "sent more than the 602 bytes"),
        (lambda data: data[:-1], "sent 601 of the 602 bytes"),
        (lambda data: b"x" + data[1:], "whose digest is not"),
    ],
)
def test_wrong_bytes_from_a_peer_leave_nothing(world: World, change: Any, says: str) -> None:
    data = change(world.parts["b"].tobytes())

    def receive() -> None:
        with world.blobs().writer(world.shard("b")) as writer:
            writer.write(data)
            writer.commit()

    with pytest.raises(SourceError, match=says):
        receive()
    assert list((world.root / "cache").iterdir()) == []


# ---- downloads ----


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `bodies`; a status instead of a body answers that, a negative one cuts the body off."""

    bodies: dict[str, bytes | int] = {}  # noqa: RUF012

    def do_GET(self) -> None:
        body = self.bodies.get(self.path, 404)
        if isinstance(body, int) and body > 0:
            self.send_error(body)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(602 if isinstance(body, int) else len(body)))
        self.end_headers()
        self.wfile.write(b"short" if isinstance(body, int) else body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(world: World) -> Iterator[str]:
    Handler.bodies = {
        "/b": world.parts["b"].tobytes(),
        "/busy": 429,
        "/short": -1,
        "/other": b"x" * 602,
        "/long": b"x" * 603,
    }
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def remote(world: World, *sources: str) -> Manifest:
    world.path("b").unlink()
    shard = world.shard("b").model_dump() | {"sources": sources}
    return world.manifest(data={"train": [world.shard("a"), shard]})


def test_shards_are_downloaded_into_the_cache(world: World, hub: str) -> None:
    manifest = remote(world, f"{hub}/busy", f"{hub}/short", f"{hub}/other", f"{hub}/b")
    assert [s.digest for s in world.blobs().missing(manifest)] == [world.shard("b").digest]
    seen: list[tuple[int, int]] = []
    open_token_store(manifest, world.blobs(), lambda *report: seen.append(report))
    assert seen[-1] == (2002, 2002)
    assert seen == sorted(seen)
    assert {p.name for p in (world.root / "cache").iterdir()} == {
        f"{world.shard('a').digest}.blob",
        f"{world.shard('b').digest}.blob",
        "verified.json",
    }


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("/busy", r"the server answered 429 Too Many Requests \(too many requests: try again later"),
        ("/gone", "the server answered 404"),
        ("/short", "IncompleteRead|sent 5 of the 602 bytes"),
        ("/other", "sent bytes whose digest is not"),
        ("/long", "sent more than the 602 bytes"),
    ],
)
def test_a_failed_download_is_explained(world: World, hub: str, name: str, says: str) -> None:
    with pytest.raises(UnusableError, match=rf"data\.train\[1\]: .* is missing: {hub}{name}: .*({says})") as caught:
        open_token_store(remote(world, hub + name), world.blobs())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ssh://host/x", "ssh: is not supported; use a path"),
        ("file:///nowhere/x", "no such file"),
        ("http://127.0.0.1:1/x", "cannot be reached"),
        ("http:///x", "cannot be reached"),
        ("s3://bucket/x", "needs a package that is not installed"),
    ],
)
def test_a_url_that_leads_nowhere(world: World, url: str, says: str) -> None:
    with pytest.raises(UnusableError, match=re.escape(says)):
        open_token_store(remote(world, url), world.blobs())


def test_a_file_ref_without_sources(world: World) -> None:
    with pytest.raises(UnusableError, match=r"file 0000000000000000… is missing: not at .*/cache/0+\.blob"):
        world.blobs().obtain(FileRef(digest="0" * 64, num_bytes=1))

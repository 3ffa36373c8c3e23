"""FIELD-CASE 12, unpickling a stranger's bytes: an object with a side effect wherever bytes come from others or from disk.

Survived: no side effect, and a reason. That nothing here can unpickle is a rule of `test_import_rules.py`; here the bytes are
really put into every place: frames of both streams, chunks of tensors, records of the directory, what peers answer, orders,
invites, tickets, and each file that a node reads.
"""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest
import torch
from grpc import aio

from node.clock import SystemClock
from node.data.files import BlobFiles
from node.data.tokenizer import load_tokenizer
from node.desk import Desk
from node.directory.library import DHTID, DHTRecord, MSGPackSerializer
from node.directory.validator import LeaseValidator
from node.event_log import read_events
from node.identity import IDENTITY_FILE, load_or_create
from node.keys import OrganiserKey
from node.leases import from_record, spare_key, to_record
from node.manifest_file import load
from node.ports import Lease, Payload, PeerError, TensorSpec, UnusableError
from node.running import FILE_NAME, read_running
from node.serving import Shelf
from node.stage.codec import decode
from node.transport.checks import WireError
from node.transport.config import Closing, Hello
from node.transport.frames import decode_answer, decode_bulk, decode_hello, decode_message, encode_hello
from node.transport.stream import METHODS
from protocol.invite import parse
from protocol.manifest import FileRef
from protocol.tickets import decode as decode_ticket
from protocol.version import PROTOCOL_VERSION
from tests.conformance.transport_worlds import World, run_real, within

RUN, NOW = "0123456789abcdef" * 4, 1_000_000.0


class Bomb:
    """Bytes that create `mark` when something unpickles them."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark
        self.plain = f"cposix\nsystem\n(S'touch {mark}'\ntR.".encode()
        zipped = io.BytesIO()
        with zipfile.ZipFile(zipped, "w") as archive:
            archive.writestr("archive/data.pkl", self.plain)
            archive.writestr("archive/version", "3\n")
        self.torch_file = zipped.getvalue()
        self.yaml = f"!!python/object/apply:os.system ['touch {mark}']\n".encode()
        self.msgpack = msgpack.packb(msgpack.ExtType(0x40, self.plain))

    @property
    def forms(self) -> list[bytes]:
        return [self.plain, self.torch_file, self.yaml, self.msgpack]


@pytest.fixture
def bomb(tmp_path: Path) -> Iterator[Bomb]:
    made = Bomb(tmp_path / "it went off")
    yield made
    assert not made.mark.exists(), "somebody unpickled a stranger's bytes"


def test_the_bomb_is_live(tmp_path: Path) -> None:
    live = Bomb(tmp_path / "mark")
    code = "import pickle, sys; pickle.loads(sys.stdin.buffer.read())"
    subprocess.run([sys.executable, "-c", code], input=live.plain, check=True, timeout=30)
    assert live.mark.exists()


def test_frames_and_answers(bomb: Bomb) -> None:
    for data in bomb.forms:
        for read in (decode_hello, decode_message, decode_bulk, decode_answer):
            with pytest.raises(WireError):
                read(data)  # type: ignore[operator]


def test_a_real_stream(bomb: Bomb, seed: int) -> None:
    async def case(world: World) -> None:
        node = await world.node("peer-b")
        async with aio.insecure_channel(node.transport.address) as channel:
            for data in bomb.forms:
                call: Any = channel.stream_stream(METHODS["bulk"])()
                await call.write(encode_hello(Hello(PROTOCOL_VERSION, "run-1", "mallory", 1, "", "peer-b")))
                await within(call.read())
                await call.write(data)
                answer = decode_answer(await within(call.read()))
                assert isinstance(answer, Closing)
                assert "no BulkFrame" in answer.sentence
        assert node.transport.counts()["refused_frame"] == len(bomb.forms)

    run_real(case, seed)


@pytest.mark.parametrize("codec", ["f32", "bf16"])
def test_tensors(bomb: Bomb, codec: str) -> None:
    """Any bytes of the right number are numbers; they are never anything else."""
    width = 4 if codec == "f32" else 2
    for data in bomb.forms:
        whole = memoryview(bytearray(data[: len(data) // width * width]))
        try:
            found = decode(
                Payload(TensorSpec(codec, (len(whole) // width,)), whole), codec, (len(whole) // width,), torch.device("cpu")
            )
        except PeerError:
            continue
        assert found.dtype is torch.float32
        with pytest.raises(PeerError):
            decode(Payload(TensorSpec(codec, (3,)), memoryview(data)), codec, (3,), torch.device("cpu"))


def test_records_of_the_directory(bomb: Bomb, tmp_path: Path) -> None:
    (tmp_path / "peer").mkdir(mode=0o700)
    key = load_or_create(tmp_path / "peer").key
    validator, peer = LeaseValidator(RUN, key, lambda: NOW), load_or_create(tmp_path / "peer").peer
    lease = Lease(peer, 1, "", "127.0.0.1:1", "", (), 0, False, False, NOW + 30)
    place, subkey = DHTID.generate(source=spare_key(RUN)).to_bytes(), MSGPackSerializer.dumps(validator.subkey)
    good = DHTRecord(place, subkey, MSGPackSerializer.dumps(to_record(lease)), lease.expires)
    assert validator.validate(replace(good, value=validator.sign_value(good)))
    for number, data in enumerate(bomb.forms, 1):
        values = [data, MSGPackSerializer.dumps(data), *(_with(lease, name, data) for name in to_record(lease))]
        for value in values:
            bad = replace(good, value=value)
            assert not validator.validate(bad)
            assert not validator.validate(replace(bad, value=validator.sign_value(bad))), "signed by its owner"
        assert not validator.validate(replace(good, subkey=data))
        assert validator.malformed == number * (2 * len(values) + 1)
        with pytest.raises(ValueError, match=r"."):
            from_record(data, peer, NOW + 30, NOW)


def _with(lease: Lease, name: str, data: bytes) -> bytes:
    packed = MSGPackSerializer.dumps(to_record(lease) | {name: data})
    assert isinstance(packed, bytes)
    return packed


def test_words_that_people_paste(bomb: Bomb) -> None:
    desk = Desk(SystemClock(), Shelf(BlobFiles(bomb.mark.parent / "data")))
    for data in bomb.forms:
        text = data.decode(errors="replace")
        reads: list[Callable[[], object]] = [
            lambda text=text: parse(text),  # type: ignore[misc]
            lambda text=text: parse("regrow1:" + text),  # type: ignore[misc]
            lambda text=text: decode_ticket("ticket", text),  # type: ignore[misc]
            lambda text=text: decode_ticket("pass", "regrow-pass1:" + text),  # type: ignore[misc]
            lambda data=data: desk.obey(data),  # type: ignore[misc]
        ]
        for read in reads:
            with pytest.raises(ValueError, match=r"."):
                read()


def test_files(bomb: Bomb, tmp_path: Path) -> None:
    """Whoever can write into a node's folders, or gives somebody a file, runs no code by it."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    for number, data in enumerate(bomb.forms):
        for name in (IDENTITY_FILE, FILE_NAME, "organiser.key", "events.jsonl", "run.yaml", "tokenizer.json", "shard.bin"):
            (state / name).write_bytes(data)
            (state / name).chmod(0o600)
        ref = FileRef(digest="0" * 64, num_bytes=len(data), sources=(str(state / "shard.bin"),))
        reads: list[Callable[[], object]] = [
            lambda: load_or_create(state),
            lambda: read_running(state),
            lambda: OrganiserKey.load(state / "organiser.key"),
            lambda: load(state / "run.yaml"),
            lambda: load_tokenizer(state / "tokenizer.json"),
            lambda ref=ref, number=number: BlobFiles(tmp_path / f"data{number}").find(ref),  # type: ignore[misc]
        ]
        for read in reads:
            with pytest.raises(UnusableError, match=str(tmp_path)):
                read()
        assert read_events(state / "events.jsonl") == []


def test_noise_around_it(bomb: Bomb, seed: int) -> None:
    """Also within bytes that begin like a frame of ours."""
    rng, hello, refused = Random(seed), encode_hello(Hello(PROTOCOL_VERSION, "run-1", "m", 1, "", "b")), 0
    for _ in range(300):
        at = rng.randrange(len(hello))
        data = hello[:at] + rng.choice(bomb.forms) + hello[at:]
        for read in (decode_hello, decode_message, decode_bulk):
            try:
                read(data)  # type: ignore[operator]
            except WireError:
                refused += 1
    assert refused > 600

"""Field case 9: data that do not fit are refused at the start with file and position, or skipped and counted; never clamped.

By the commands as people type them. Held elsewhere: empty, truncated, other and missing shards, directories and a bad id
(`test_cli_bad_input`); the vocabulary one below the largest id, a bad id amid a large shard, an odd byte count, files that are
changed, replaced or taken away while the node runs (`tests/unit/test_data_store`); every position in bad text
(`tests/unit/test_data_prepare`); a folder that goes (`tests/conformance/test_data_without_owner`).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from tokenizers import Tokenizer

from node.manifest_file import loads
from protocol.sampling import num_train_windows
from tests.tools.command import forked, refused
from tests.tools.material import tiny, write_shard

BAD_USE = 2
WORDS = "the quick brown fox jumps over the lazy dog and runs away from the bear ".split()
PROSE = "".join(f"{WORDS[i * 7 % len(WORDS)]} {i * 7919 % 1000} " for i in range(4000))


def prepared(folder: Path, name: str, data: bytes, *flags: str) -> tuple[Path, str]:
    """data.json of this text, and what was said on stderr."""
    path = folder / f"{name}.txt"
    path.write_bytes(data)
    ended = forked("data", "prepare", path, "--out", folder / name, "--vocab-size", "300", "--validation", "0", *flags)
    assert ended.code == 0, ended.err
    return Path(ended.out.strip()), ended.err


def text_of(data_file: Path) -> str:
    """What the shards say, through their own tokenizer."""
    section = json.loads(data_file.read_bytes())
    tokenizer = Tokenizer.from_file(str(data_file.parent / section["tokenizer"]["sources"][0]))
    ids = np.concatenate([np.fromfile(data_file.parent / shard["sources"][0], "<u2") for shard in section["train"]])
    return str(tokenizer.decode(ids.tolist(), skip_special_tokens=True))


def test_two_tokenizers(tmp_path: Path) -> None:
    one, _ = prepared(tmp_path, "one", PROSE.encode())
    other, _ = prepared(tmp_path, "other", PROSE.upper().encode())
    line = refused(BAD_USE, "init", "--data", one, "--data", other)
    assert f"{one} and {other} were made with different tokenizers" in line
    same, _ = prepared(tmp_path, "same", PROSE.encode(), "--tokenizer", str(one.parent / "tokenizer.json"))
    ended = forked("init", "--data", one, "--data", same)
    assert ended.code == 0, ended.err
    assert len(loads(ended.out, "stdout").data.train) == 2


def test_urls_of_prepared_data_stay_urls_and_paths_are_noted(tmp_path: Path) -> None:
    data_file, _ = prepared(tmp_path, "one", PROSE.encode())
    ended = forked("init", "--preset", "124m", "--data", data_file)
    assert ended.err.count("are paths of this machine") == 1, ended.err
    assert "are paths of this machine" not in forked("init", "--preset", "tiny", "--data", data_file).err, "it stays here"
    section = json.loads(data_file.read_bytes())
    for shard in section["train"]:
        shard["sources"] = [f"https://example.org/{shard['digest']}"]
    data_file.write_text(json.dumps(section))
    ended = forked("init", "--preset", "124m", "--data", data_file)
    assert (ended.code, ended.err) == (0, "")
    assert loads(ended.out, "stdout").data.train[0].sources == (section["train"][0]["sources"][0],)


def test_text_with_cr_lf_and_a_byte_order_mark(tmp_path: Path) -> None:
    text = PROSE.replace(" 7", "\r\n7")
    data_file, said = prepared(tmp_path, "windows", b"\xef\xbb\xbf" + text.encode())
    assert "byte order mark" in said
    assert text_of(data_file) == text


@pytest.mark.parametrize(("bad", "says"), [(b"\0", "NUL"), (b"\xff\xfe", "UTF-8")])
def test_bad_bytes_are_refused_with_their_place_or_skipped_and_counted(tmp_path: Path, bad: bytes, says: str) -> None:
    half = PROSE.encode()
    (tmp_path / "bad.txt").write_bytes(half + bad + half)
    line = refused(BAD_USE, "data", "prepare", tmp_path / "bad.txt", "--out", tmp_path / "out", "--vocab-size", "300")
    assert str(tmp_path / "bad.txt") in line and says in line and str(len(half)) in line.replace(",", "")
    data_file, said = prepared(tmp_path, "bad", half + bad + half, "--skip-bad")
    assert re.search(rf"bad\.txt: .*byte {len(half)}\b.*left out", said), said
    assert text_of(data_file) == PROSE + PROSE


def test_a_document_longer_than_the_context(tmp_path: Path) -> None:
    """It is cut into samples; nothing but a tail shorter than one is left out."""
    data_file, _ = prepared(tmp_path, "long", PROSE.encode())
    ended = forked("init", "--data", data_file, "--set", "evaluation.every_steps=0", "--set", "batch.context_tokens=16")
    assert ended.code == 0, ended.err
    manifest = loads(ended.out, "stdout")
    tokens = sum(shard.num_tokens for shard in manifest.data.train)
    assert tokens > 100 * 16
    assert 0 <= tokens - 1 - 16 * num_train_windows(manifest) < 16


def test_an_odd_number_of_bytes_that_the_manifest_agrees_with(tmp_path: Path) -> None:
    values = tiny(tmp_path)
    path = tmp_path / "train.bin"
    odd = write_shard(path, 20_000)
    path.write_bytes(path.read_bytes() + b"\0")
    import blake3

    odd |= {"num_bytes": 40_001, "digest": blake3.blake3(path.read_bytes()).hexdigest()}
    values["data"]["train"] = [odd]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    line = refused(BAD_USE, "start", tmp_path / "run.yaml", "--state-dir", tmp_path / "state", "--stage", "0")
    assert "num_bytes 40001 is not num_tokens 20000 x 2 bytes" in line


def test_a_model_with_fewer_ids_than_the_tokenizer(tmp_path: Path) -> None:
    data_file, _ = prepared(tmp_path, "one", PROSE.encode())
    ended = forked("init", "--data", data_file, "--set", "model.vocab_size=290", "--set", "evaluation.every_steps=0")
    assert ended.code == 0, ended.err
    (tmp_path / "run.yaml").write_text(ended.out)
    line = refused(BAD_USE, "start", tmp_path / "run.yaml", "--state-dir", tmp_path / "state", "--stage", "0")
    assert re.search(r"token \d+ \(byte \d+\) has id 29\d, but model.vocab_size is 290", line)

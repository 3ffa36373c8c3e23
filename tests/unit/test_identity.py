"""The identity file, the incarnation counter and the lock of a state directory."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from node.identity import (
    IDENTITY_FILE,
    INCARNATION_FILE,
    LOCK_FILE,
    StateLock,
    double_start_error,
    find_double,
    load_or_create,
    next_incarnation,
)
from node.ports import Lease, UnusableError

OWN = Lease("QmMe", 3, "n", "127.0.0.1:1000", "", (1,), 0, False, False, 50.0)


def refused(state_dir: Path) -> str:
    """The sentence of the refusal; checks that nothing was replaced."""
    before = (state_dir / IDENTITY_FILE).read_bytes()
    with pytest.raises(UnusableError) as caught:
        load_or_create(state_dir)
    assert caught.value.code == 2
    assert str(state_dir / IDENTITY_FILE) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (state_dir / IDENTITY_FILE).read_bytes() == before
    return str(caught.value)


def test_made_once_and_then_kept(tmp_path: Path) -> None:
    identity = load_or_create(tmp_path)
    assert stat.S_IMODE(identity.path.stat().st_mode) == 0o600
    again = load_or_create(tmp_path)
    assert again.peer == identity.peer
    assert again.key.private_numbers() == identity.key.private_numbers()
    assert sorted(path.name for path in tmp_path.iterdir()) == [IDENTITY_FILE, INCARNATION_FILE]


def test_peer_id_of_a_known_key(tmp_path: Path) -> None:
    """Key and peer id as p2pd pairs them (tests/conformance asks p2pd itself)."""
    identity = load_or_create(tmp_path)
    assert identity.peer.startswith("Qm")
    assert len(identity.peer) == 46


def test_broken_files_are_never_replaced(tmp_path: Path) -> None:
    path = load_or_create(tmp_path).path
    good = path.read_bytes()
    path.write_bytes(b"")
    assert "is empty: restore it from a copy, or move it away" in refused(tmp_path)
    for data in (
        good[:-1],
        good[:100],
        good[:3],
        good + b"x",
        b"nonsense",
        b"\x08\x01" + good[2:],
        b"\x08\x00\x12\xff\xff\xff\xff",
    ):
        path.write_bytes(data)
        assert "truncated or no libp2p RSA key" in refused(tmp_path)
    path.write_bytes(bytes(100_000))
    assert "too long" in refused(tmp_path)
    path.write_bytes(good)
    path.chmod(0o640)
    assert f"open to other users (mode 640): run `chmod 600 {path}`" in refused(tmp_path)
    path.chmod(0o400)
    assert load_or_create(tmp_path).path == path


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to(path.parent / "gone")])
def test_something_else_in_its_place(tmp_path: Path, make: object) -> None:
    make(tmp_path / IDENTITY_FILE)  # type: ignore[operator]
    with pytest.raises(UnusableError, match="cannot read the identity file"):
        load_or_create(tmp_path)
    assert os.path.lexists(tmp_path / IDENTITY_FILE)


def test_incarnations_only_grow(tmp_path: Path) -> None:
    load_or_create(tmp_path)
    assert [next_incarnation(tmp_path) for _ in range(3)] == [1, 2, 3]
    load_or_create(tmp_path)
    assert next_incarnation(tmp_path) == 4


@pytest.mark.parametrize("text", ["", "seven", "-3", "1.5", "9" * 40, "٣"])
def test_a_broken_counter_is_named(tmp_path: Path, text: str) -> None:
    load_or_create(tmp_path)
    path = tmp_path / INCARNATION_FILE
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UnusableError, match=r"incarnation file .* is broken: write a number") as caught:
        next_incarnation(tmp_path)
    assert str(path) in str(caught.value)
    assert path.read_text(encoding="utf-8") == text


def test_a_lost_counter_is_not_begun_anew(tmp_path: Path) -> None:
    """An incarnation used twice would let a restarted node pass for the voter that it was."""
    load_or_create(tmp_path)
    (tmp_path / INCARNATION_FILE).unlink()
    load_or_create(tmp_path)
    with pytest.raises(UnusableError, match=r"is missing beside identity\.key"):
        next_incarnation(tmp_path)


def test_the_lock_names_its_holder(tmp_path: Path) -> None:
    with StateLock.take(tmp_path / "state"):
        with pytest.raises(UnusableError, match=rf"lock is held by process {os.getpid()}: a node already runs") as caught:
            StateLock.take(tmp_path / "state")
        assert caught.value.code == 2
        assert str(tmp_path / "state" / LOCK_FILE) in str(caught.value)
    StateLock.take(tmp_path / "state").close()


HOLD = """
import sys
from pathlib import Path
from node.identity import StateLock
lock = StateLock.take(Path(sys.argv[1]))
print("held", flush=True)
input()
"""


def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UnusableError, match=f"process {holder.pid}:"):
            StateLock.take(tmp_path)
        holder.kill()
        holder.wait()
    StateLock.take(tmp_path).close()


def test_a_state_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnusableError, match="cannot open the lock file"):
        StateLock.take(tmp_path / "file" / "state")


async def answers(lease: Lease) -> bool:
    return True


async def silent(lease: Lease) -> bool:
    return False


async def test_the_same_identity_elsewhere(tmp_path: Path) -> None:
    elsewhere = replace(OWN, address="127.0.0.1:2000", incarnation=2)
    newer = replace(OWN, incarnation=4)
    for other in (elsewhere, newer):
        assert await find_double([replace(OWN, peer="QmYou"), other], OWN, answers) == other
        assert await find_double([other], OWN, silent) is None, "left behind by an earlier life"
    for harmless in (replace(elsewhere, leaving=True), replace(elsewhere, peer="QmYou"), replace(OWN, incarnation=2), OWN):
        assert await find_double([harmless], OWN, answers) is None
    sentence = str(double_start_error(load_or_create(tmp_path), elsewhere.address))
    assert IDENTITY_FILE in sentence
    assert "127.0.0.1:2000" in sentence

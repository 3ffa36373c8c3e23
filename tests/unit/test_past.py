"""What an earlier life left behind: known peers, and whether the run has begun."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.past import MAX_PEERS, Past
from node.ports import UnusableError
from node.state_store import DirectoryStore

DIGEST = "0123456789abcdef" * 4
FILE = "peers-0123456789abcdef.json"


def address(number: int, port: int = 4000) -> str:
    peer = "Qm" + "".join("ABCDEFGHJK"[int(digit)] for digit in f"{number:044d}")
    return f"/ip4/8.8.4.4/tcp/{port}/p2p/{peer}"


@pytest.fixture
def past(tmp_path: Path) -> Past:
    return Past(DirectoryStore.open(tmp_path), DIGEST)


def test_the_newest_first_each_peer_once_and_bounded(past: Past) -> None:
    assert past.peers() == ()
    past.remember([address(1), address(2)])
    past.remember([address(3), address(2, port=5000)])
    assert past.peers() == (address(3), address(2, port=5000), address(1))
    past.remember(address(number) for number in range(100, 200))
    assert past.peers() == tuple(address(number) for number in range(100, 100 + MAX_PEERS))


def test_each_run_has_its_own(past: Past, tmp_path: Path) -> None:
    past.remember([address(1)])
    past.note_begun()
    other = Past(DirectoryStore(tmp_path), "f" * 64)
    assert (other.peers(), other.has_begun()) == ((), False)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"{}", b"\xff", b"[1, null, {}]", b'["nonsense", "/ip4/8.8.4.4/tcp/1"]', b"[" * 10**5]
)
def test_a_broken_cache_counts_as_empty(data: bytes, past: Past, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(data)
    assert past.peers() == ()
    past.remember([address(1)])
    assert json.loads((tmp_path / FILE).read_text()) == [address(1)]


def test_nothing_is_written_where_nothing_is_new(past: Past, tmp_path: Path) -> None:
    past.remember([address(1)])
    before = (tmp_path / FILE).stat().st_ino
    past.remember([address(1)])
    assert (tmp_path / FILE).stat().st_ino == before


def test_a_run_has_begun_once_something_was_decided_and_stays_so(past: Past, tmp_path: Path) -> None:
    assert not past.has_begun()
    past.note_begun()
    assert Past(DirectoryStore(tmp_path), DIGEST).has_begun()


def test_a_full_disk_takes_nothing_else_along(caplog: pytest.LogCaptureFixture) -> None:
    class Full:
        def read(self, name: str) -> bytes | None:
            return None

        def write(self, name: str, data: bytes) -> None:
            raise UnusableError(2, "no space left")

    past = Past(Full(), DIGEST)
    past.remember([address(1)])
    past.note_begun()
    assert caplog.text.count("no space left") == 2

"""The state store: whole files or none, no pile of temporaries, errors that say what to do."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from pathlib import Path

import pytest

from node.ports import UnusableError
from node.state_store import TEMP_PREFIX, DirectoryStore


def test_reads_what_was_written(tmp_path: Path) -> None:
    store = DirectoryStore.open(tmp_path / "deep" / "state")
    assert store.read("identity") is None
    store.write("identity", b"one")
    store.write("identity", b"two" * 1000)
    assert store.read("identity") == b"two" * 1000
    assert os.listdir(store.directory) == ["identity"]
    assert store.path("identity").stat().st_mode & 0o077 == 0


def test_old_contents_survive_a_write_that_fails(tmp_path: Path) -> None:
    store = DirectoryStore.open(tmp_path)
    store.write("peers", b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(UnusableError, match="File too large"):
            store.write("peers", b"n" * 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert store.read("peers") == b"old"
    assert os.listdir(tmp_path) == ["peers"]


def test_start_removes_temporaries_of_the_dead_only(tmp_path: Path) -> None:
    dead, living = tmp_path / f"{TEMP_PREFIX}4194305-a-00", tmp_path / f"{TEMP_PREFIX}{os.getppid()}-b-00"
    unnamed = tmp_path / f"{TEMP_PREFIX}odd"
    for path in (dead, living, unnamed):
        path.write_bytes(b"half")
    DirectoryStore.open(tmp_path)
    assert os.listdir(tmp_path) == [living.name]


def test_directory_removed_while_running(tmp_path: Path) -> None:
    store = DirectoryStore.open(tmp_path / "state")
    shutil.rmtree(tmp_path / "state")
    assert store.read("identity") is None
    with pytest.raises(UnusableError, match="removed") as raised:
        store.write("identity", b"x")
    assert raised.value.code == 2


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"")
    with pytest.raises(UnusableError, match=r"state: File exists; choose another --state-dir"):
        DirectoryStore.open(tmp_path / "state")


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    store = DirectoryStore.open(tmp_path)
    (tmp_path / "identity").mkdir()
    with pytest.raises(UnusableError, match="identity"):
        store.read("identity")
    with pytest.raises(UnusableError, match="cannot use"):
        store.write("identity", b"x")
    assert os.listdir(tmp_path) == ["identity"]


@pytest.mark.parametrize("name", ["", "../identity", ".hidden", "a/b"])
def test_names_stay_inside(tmp_path: Path, name: str) -> None:
    with pytest.raises(AssertionError):
        DirectoryStore(tmp_path).path(name)

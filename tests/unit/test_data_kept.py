"""Shards that are in use stay, whatever becomes of their folder: read, served and found again."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from node.data.store import open_token_store
from tests.tools.data_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def _gone(path: Path) -> None:
    path.unlink()


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def rows(store: Any) -> list[Any]:
    return [store.microbatch(step, microbatch).tolist() for step in range(1, 7) for microbatch in range(4)]


@pytest.mark.parametrize("other_file_system", [False, True])
@pytest.mark.parametrize("breakage", [_directory, _fifo, _gone])
def test_a_folder_that_is_taken_away_while_running_takes_nothing_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch, breakage: Any, other_file_system: bool
) -> None:
    if other_file_system:
        monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError(errno.EXDEV, "other file system")))
    blobs = world.blobs()
    store = open_token_store(world.manifest(), blobs)
    before = rows(store)
    for name in world.parts:
        breakage(world.path(name))
    assert rows(store) == before
    for name, part in world.parts.items():
        path = blobs.blob_path(world.shard(name).digest)
        assert path is not None, "it is not served any more"
        assert path.read_bytes() == part.tobytes()
    if not other_file_system:
        assert rows(world.open()) == before, "a restart finds it too"


def test_what_is_kept_is_not_a_second_copy(world: World) -> None:
    world.open()
    kept = world.root / "cache" / f"{world.shard('a').digest}.blob"
    assert kept.samefile(world.path("a"))


def test_few_files_are_held_open(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError(errno.EXDEV, "other file system")))
    monkeypatch.setattr("node.data.files.MAX_HELD", 1)
    before = len(os.listdir("/proc/self/fd"))
    store = world.open()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    rows(store)

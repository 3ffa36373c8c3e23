"""The store of saved stages: what is read back is what was saved, damage is told, old sets go when newer ones are complete."""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from blake3 import blake3
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.numpy import load_file

from node.checkpoints.form import Saved
from node.checkpoints.places import TEMP_PREFIX, DirectoryPlace, ObjectPlace, Place, PlaceError, open_place
from node.checkpoints.store import CheckpointStore, DamagedError, GivenUpError
from tests.tools.saved import PARAMETERS, a_stage

NUM_STAGES = 3


@pytest.fixture(params=["directory", "object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "directory":
        return DirectoryPlace(tmp_path / "deep" / "run")
    fs = MemoryFileSystem(skip_instance_cache=True)
    fs.store, fs.pseudo_dirs = {}, [""]
    return ObjectPlace(fs, "bucket/run", "s3://bucket/run")


@pytest.fixture
def store(place: Place) -> CheckpointStore:
    return CheckpointStore(place, "run", chunk_bytes=64)


def save_set(store: CheckpointStore, step: int, stages: int = NUM_STAGES, record: str = "") -> list[Saved]:
    made = [a_stage(stage, step, record) for stage in range(stages)]
    for saved, data in made:
        store.save(saved, PARAMETERS, memoryview(data))
    return [saved for saved, _ in made]


def test_reads_what_was_saved(store: CheckpointStore) -> None:
    saved, data = a_stage(1, 10)
    size = store.save(saved, PARAMETERS, memoryview(data))
    assert store.place.sizes() == {saved.name: size}
    assert store.survey() == [saved]
    assert store.load(1, saved.state_id) == (saved, data)


def test_any_reader_of_safetensors_reads_it(tmp_path: Path) -> None:
    store = CheckpointStore(DirectoryPlace(tmp_path), "run")
    saved, data = a_stage(1, 10)
    store.save(saved, PARAMETERS, memoryview(data))
    tensors = load_file(tmp_path / saved.name)
    sections = [prefix + name for prefix in ("", "exp_avg.", "exp_avg_sq.") for name, _ in PARAMETERS]
    assert sorted(tensors) == sorted(sections)
    assert {name: tensors[name].shape for name, _ in PARAMETERS} == dict(PARAMETERS)
    assert b"".join(tensors[name].tobytes() for name in sections) == data


def test_nothing_there_yet(store: CheckpointStore) -> None:
    assert store.survey() == []
    with pytest.raises(DamagedError, match="no stage 2 as of feed"):
        store.load(2, "feed")


def test_a_truncated_file_counts_as_absent(tmp_path: Path) -> None:
    store = CheckpointStore(DirectoryPlace(tmp_path), "run")
    saved = save_set(store, 10, 1)[0]
    path = tmp_path / saved.name
    whole = path.read_bytes()
    for size in (0, 4, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert store.survey() == []
        with pytest.raises(DamagedError):
            store.load(0, saved.state_id)
    path.write_bytes(whole)
    assert store.survey() == [saved]


def test_a_flipped_byte_is_found_wherever_it_is(tmp_path: Path, seed: int) -> None:
    """In the names and shapes of the tensors it does no harm; what is used is checked, to the last byte."""
    rng = random.Random(seed)
    store = CheckpointStore(DirectoryPlace(tmp_path), "run")
    saved, data = a_stage(2, 10)
    store.save(saved, PARAMETERS, memoryview(data))
    path = tmp_path / saved.name
    whole = path.read_bytes()
    begins = len(whole) - len(data)
    facts = whole.index(b'{\\"digest\\"')
    places = [0, 7, facts + 20, begins, len(whole) - 1, *(rng.randrange(begins, len(whole)) for _ in range(20))]
    for at in places:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(DamagedError, match=saved.name):
            store.load(2, saved.state_id)
    for at in range(8, begins, 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            assert store.load(2, saved.state_id) == (saved, data)
        except DamagedError:
            continue


def test_a_file_under_another_name_or_of_another_run_is_not_taken(tmp_path: Path) -> None:
    store = CheckpointStore(DirectoryPlace(tmp_path), "run")
    saved = save_set(store, 10, 1)[0]
    other = tmp_path / saved.name.replace("00000010", "00000020")
    (tmp_path / saved.name).rename(other)
    assert store.survey() == []
    other.rename(tmp_path / saved.name)
    assert CheckpointStore(DirectoryPlace(tmp_path), "another").survey() == []
    (tmp_path / "notes.txt").write_text("mine")
    assert store.survey() == [saved]


def test_what_is_not_wanted_any_more_leaves_nothing(store: CheckpointStore) -> None:
    saved, data = a_stage(0, 10)
    answers = iter([True, True, False])
    with pytest.raises(GivenUpError):
        store.save(saved, PARAMETERS, memoryview(data), lambda: next(answers))
    assert store.place.sizes() == {}


def test_old_sets_go_once_two_newer_ones_are_complete(store: CheckpointStore) -> None:
    for step in (10, 20):
        save_set(store, step)
        assert store.prune(1, NUM_STAGES, lambda _: True) == []
    save_set(store, 30, stages=2)
    assert store.prune(1, NUM_STAGES, lambda _: True) == []
    save_set(store, 30)
    assert len(store.prune(1, NUM_STAGES, lambda _: True)) == 1
    assert {(s.step, s.stage) for s in store.survey()} == {(10, 0), (10, 2)} | {(s, x) for s in (20, 30) for x in range(3)}


def test_sets_that_the_run_cannot_go_back_to_keep_none_alive_and_are_kept_while_newer(store: CheckpointStore) -> None:
    for step in (10, 20):
        save_set(store, step)
    dead = save_set(store, 30, record="dead")
    assert store.prune(1, NUM_STAGES, lambda record: record != "dead") == []
    for step in (30, 40, 50):
        save_set(store, step)
    removed = store.prune(1, NUM_STAGES, lambda record: record != "dead")
    assert dead[1].name in removed and len(removed) == 4
    assert [s.step for s in store.survey() if s.stage == 1] == [50, 40]


def test_stages_of_different_commits_are_no_set(store: CheckpointStore) -> None:
    for step in (10, 20, 30):
        for stage in range(NUM_STAGES):
            saved, data = a_stage(stage, step, record=f"of stage {stage}")
            store.save(saved, PARAMETERS, memoryview(data))
    assert store.prune(0, NUM_STAGES, lambda _: True) == []


def test_a_place_that_is_no_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = CheckpointStore(DirectoryPlace(tmp_path / "file" / "run"), "run")
    saved, data = a_stage(0, 10)
    with pytest.raises(PlaceError, match=r"file/run cannot be written: Not a directory"):
        store.save(saved, PARAMETERS, memoryview(data))


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    store = CheckpointStore(DirectoryPlace(tmp_path), "run")
    before = save_set(store, 10, 1)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
    try:
        with pytest.raises(PlaceError, match="File too large"):
            save_set(store, 20, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert store.survey() == before
    assert os.listdir(tmp_path) == [before[0].name]


def test_temporaries_of_the_dead_go_with_the_next_save(tmp_path: Path) -> None:
    host = socket.gethostname()
    names = {n: tmp_path / f"{TEMP_PREFIX}{n}" for n in (f"4194305.{host}.0", f"{os.getppid()}.{host}.0", "1.elsewhere.0")}
    for path in names.values():
        path.write_bytes(b"half")
    old = tmp_path / f"{TEMP_PREFIX}2.elsewhere.0"
    old.write_bytes(b"half")
    os.utime(old, (0, 0))
    store = CheckpointStore(DirectoryPlace(tmp_path), "run")
    assert store.survey() == []
    saved = save_set(store, 10, 1)
    left = {path.name for path in list(names.values())[1:]} | {saved[0].name}
    assert set(os.listdir(tmp_path)) == left


@pytest.mark.timeout(300)  # for 30 processes, on any machine
@pytest.mark.parametrize("times", [4, pytest.param(30, marks=pytest.mark.full)])
def test_killed_while_saving(tmp_path: Path, seed: int, times: int) -> None:
    """Whatever the moment: all files are whole, what was told as saved is there, and no temporaries pile up."""
    rng = random.Random(seed)
    store = CheckpointStore(DirectoryPlace(tmp_path), "run")
    told = 0
    for _ in range(times):
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.tools.saved", str(tmp_path), str(told + 1)], stdout=subprocess.PIPE, text=True
        )
        with writer:
            assert writer.stdout
            for _ in range(rng.randint(1, 12)):
                told = int(writer.stdout.readline())
            for _ in range(rng.randrange(20_000)):
                pass
            writer.kill()
        found = store.survey()
        assert len(found) == len([n for n in os.listdir(tmp_path) if not n.startswith(TEMP_PREFIX)])
        assert found[0].step in (told, told + 1)
        told = found[0].step
        saved, data = store.load(0, found[0].state_id)
        assert saved.digest == blake3(data).update(saved.optimizer_age.to_bytes(8, "little")).hexdigest()
        assert len([n for n in os.listdir(tmp_path) if n.startswith(TEMP_PREFIX)]) <= 1


def test_stores_by_path_and_by_url(tmp_path: Path) -> None:
    assert open_place(str(tmp_path), "run").where == str(tmp_path / "run")
    assert open_place(f"file://{tmp_path}", "run").where == str(tmp_path / "run")
    with pytest.raises(ValueError, match="ftp: is not supported"):
        open_place("ftp://somewhere/x", "run")

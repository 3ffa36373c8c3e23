"""Stages that the real executor saves and reads back: to the bit, optimizer included; and what is said where that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from blake3 import blake3

from node.checkpoints.places import DirectoryPlace
from node.checkpoints.store import CheckpointStore
from node.savings import BUSY, Savings
from node.sim.loop import VirtualClock, run_virtual
from node.stage.executor import TorchExecutor
from protocol.commands import Restore, Save, Survey
from protocol.events import Event, Learned, RestoreFailed, Saved, SavedState, Surveyed
from protocol.manifest import Manifest
from tests.numerics.harness import RandomTokens, manifest_of
from tests.numerics.test_state_ranges import STAGE, donors_of, train

SOURCE, NAME, RECORD = "5" * 32, "a" * 32, "c" * 32


async def at_once(what: Callable[..., Any], *args: Any) -> Any:
    return what(*args)


class Node:
    """An executor, and what is told of its saving."""

    def __init__(self, manifest: Manifest, executor: TorchExecutor, folder: Path) -> None:
        self.executor, self.told, self.sizes = executor, list[Event](), dict[int, int]()
        self.store = CheckpointStore(DirectoryPlace(folder / "run"), manifest.run_id)
        seated = self.sizes.__setitem__
        self.savings = Savings(manifest, executor, self.store, VirtualClock(), self.told.append, seated, at_once)

    async def save(self, step: int) -> Saved:
        info = await self.executor.info(STAGE)
        await self.savings.save(Save(STAGE, step, SOURCE, RECORD, info.digest, info.optimizer_age, 1.1, (RECORD,)))
        told = self.told[-1]
        assert isinstance(told, Saved)
        return told

    async def restore(self, step: int, source: str = SOURCE) -> Event:
        await self.savings.restore(Restore(STAGE, source, NAME, step, 0))
        return self.told[-1]


async def a_trained_node(folder: Path, steps: int = 3) -> tuple[Manifest, Node]:
    manifest = manifest_of(num_block_stages=2)
    [donor] = await donors_of(manifest)
    for step in range(1, steps + 1):
        await train(manifest, [donor], step)
    return manifest, Node(manifest, donor, folder)


def another(manifest: Manifest, folder: Path) -> Node:
    return Node(manifest, TorchExecutor(manifest, RandomTokens(manifest), inline=True), folder)


def test_what_is_read_back_is_what_was_saved(tmp_path: Path) -> None:
    async def body() -> None:
        manifest, node = await a_trained_node(tmp_path)
        told = await node.save(3)
        assert (told.stage, told.step, told.trouble) == (STAGE, 3, "") and told.num_bytes > 0
        await node.savings.survey(Survey(7))
        assert node.told[-1] == Surveyed(7, (SavedState(STAGE, SOURCE),))
        fresh, info = another(manifest, tmp_path), await node.executor.info(STAGE)
        learned = await fresh.restore(3)
        assert isinstance(learned, Learned)
        facts = (learned.state_id, learned.step, learned.digest, learned.optimizer_age, learned.lr_factor, learned.donors)
        assert facts == (NAME, 3, info.digest, 3, 1.1, ())
        assert fresh.sizes == {STAGE: info.num_elements}
        size = info.num_elements
        for section in ("weights", "exp_avg", "exp_avg_sq"):
            mine = await fresh.executor.export(STAGE, section, 0, size)
            assert bytes(mine) == bytes(await node.executor.export(STAGE, section, 0, size)), section

    run_virtual(body())


def test_without_anything_saved_a_stage_begins_as_the_seed_has_it(tmp_path: Path) -> None:
    async def body() -> None:
        manifest, node = await a_trained_node(tmp_path)
        learned = await node.restore(0)
        seed = await another(manifest, tmp_path).executor.create(STAGE)
        assert isinstance(learned, Learned)
        assert (learned.digest, learned.optimizer_age, learned.lr_factor) == (seed.digest, 0, 1.0)

    run_virtual(body())


def test_damage_is_told_and_a_place_that_cannot_be_read_is_waited_for(tmp_path: Path) -> None:
    async def body() -> None:
        manifest, node = await a_trained_node(tmp_path)
        await node.save(3)
        [path] = (tmp_path / "run").iterdir()
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        fresh = another(manifest, tmp_path)
        failed = await fresh.restore(3)
        assert isinstance(failed, RestoreFailed) and "its bytes are not those that were saved" in failed.reason
        failed = await fresh.restore(3, "0" * 32)
        assert isinstance(failed, RestoreFailed) and "has no stage 1 as of 00000000" in failed.reason
        path.write_bytes(whole)
        (tmp_path / "run").rename(tmp_path / "away")
        (tmp_path / "run").write_bytes(b"")
        restoring = asyncio.ensure_future(fresh.restore(3))
        await asyncio.sleep(10.0)
        assert not restoring.done()
        await fresh.savings.survey(Survey(1))
        assert fresh.told[-1] == Surveyed(1, (), f"{tmp_path}/run cannot be read: Not a directory")
        (tmp_path / "run").unlink()
        (tmp_path / "away").rename(tmp_path / "run")
        assert isinstance(await restoring, Learned)

    run_virtual(body())


def test_a_save_that_fails_says_why_and_one_at_a_time_is_enough(tmp_path: Path) -> None:
    async def body() -> None:
        _, node = await a_trained_node(tmp_path)
        (tmp_path / "run").write_bytes(b"")
        assert (await node.save(3)).trouble == f"{tmp_path}/run cannot be written: Not a directory"
        (tmp_path / "run").unlink()
        node.savings._busy.add(STAGE)
        assert (await node.save(3)).trouble == BUSY
        node.savings._busy.clear()
        assert (await node.save(3)).trouble == ""
        node.savings.close()
        (tmp_path / "run").rename(tmp_path / "away")
        assert (await node.save(3)).trouble == "this node goes"
        assert list((tmp_path / "run").iterdir()) == []

    run_virtual(body())


def test_what_another_model_saved_is_not_taken(tmp_path: Path) -> None:
    async def body() -> None:
        manifest, node = await a_trained_node(tmp_path)
        await node.save(3)
        [saved] = node.store.survey()
        small = replace(saved, num_elements=3)
        state = bytearray(36)
        node.store.place.remove(saved.name)
        digest = blake3(state).update(small.optimizer_age.to_bytes(8, "little")).hexdigest()
        node.store.save(replace(small, digest=digest), [("w", (3,))], memoryview(state))
        failed = await another(manifest, tmp_path).restore(3)
        assert isinstance(failed, RestoreFailed) and "3 were saved" in failed.reason

    run_virtual(body())

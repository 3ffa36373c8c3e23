"""The grid's plan, its links and its computations' time, without a tensor."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import pytest

from node.cli.main import main
from node.lab.derived import RATES
from node.lab.grid.charged import Turns, work_s
from node.lab.grid.draw import FULL, QUICK, plan_of
from node.lab.grid.plan import FROZEN, MIB, Plan, draw, read_plan, scales
from node.lab.grid.policies import NO_DATA, ROWS, Row, cells, refused
from node.lab.grid.regions import RegionLibrary, Regions, Scale
from node.ports import PeerError, UnusableError
from node.sim.loop import run_virtual
from protocol.commands import Work
from protocol.ids import Ballot
from protocol.messages import Hop, PipeHeader, ReduceHeader, Route
from protocol.sizes import model_parameters, stage_parameters

PLAN = plan_of(FULL)
RIG = PLAN.rig
BALLOT = Ballot(1, "a")


def test_the_frozen_plan_is_the_one_that_is_drawn() -> None:
    assert read_plan(FROZEN) == PLAN
    assert read_plan(FROZEN).digest == PLAN.digest != plan_of(QUICK).digest


def test_the_rig_is_the_paper_s() -> None:
    assert len(RIG.places) == len(set(RIG.places)) == 7
    pairs = [(a, b) for n, a in enumerate(RIG.places) for b in RIG.places[n + 1 :]]
    assert len(RIG.links) == len(pairs) == 21
    links = [RIG.link(b, a) for a, b in pairs]
    assert (min(x.latency_s for x in links), max(x.latency_s for x in links)) == (0.003, 0.132)
    assert (min(x.mib_s for x in links), max(x.mib_s for x in links)) == (0.0094 * 1024, 0.2425 * 1024)
    large = RIG.manifest(RIG.large, NO_DATA, 0, {"policy": "none"})
    assert round(model_parameters(large) / 1e6) == 468
    assert {rate: RATES[rate] for rate in ("5", "10", "16")} == {"5": 0.0009, "10": 0.002, "16": 0.004}


@pytest.mark.parametrize("rate", ["5", "10", "16"])
def test_failures_come_as_often_as_the_paper_says(rate: str) -> None:
    drawn = [s for s in PLAN.schedules if s.rate == rate and not s.stage0]
    assert [s.seed for s in drawn] == [0, 1, 2]
    expected = RATES[rate] * RIG.num_block_stages * PLAN.max_steps
    for schedule in drawn:
        assert abs(len(schedule.failures) - expected) < 4 * expected**0.5
        assert {f.stage for f in schedule.failures} <= set(range(1, 7))
        steps = [f.step for f in schedule.failures]
        assert steps == sorted(steps) and steps[0] >= 2
    assert len({s.failures for s in drawn}) == 3


def test_only_the_second_set_loses_stage_0() -> None:
    second = [s for s in PLAN.schedules if s.stage0]
    assert [(s.rate, s.seed) for s in second] == [("10", 0), ("10", 1), ("10", 2)]
    assert all(any(f.stage == 0 for f in s.failures) for s in second)
    assert draw("10", 1, True, 6, 4000, 0.002) == second[1]
    assert PLAN.schedule("0", 0, False) == ()


def test_every_policy_meets_the_same_failures() -> None:
    found = cells(RIG, (0, 1, 2), ("0", "5", "10", "16"))
    rows = [row for row in ROWS if not refused(RIG, row)]
    assert {"none", "checkpoint_10", "checkpoint_100", "copy", "uniform", "random", "checkfree", "checkfree_plus"} <= {
        row.name for row in rows
    }
    per_seed = sum(len(row.rates) + (row.stage0 is not None) for row in rows)
    assert len(found) == 3 * per_seed
    assert {cell.policy for cell in found if cell.rate == "0"} == {"none", "checkfree_plus"}
    second = {cell.policy: cell for cell in found if cell.stage0}
    assert {"checkpoint_10", "checkfree_plus"} <= set(second)
    assert second["checkfree_plus"].recovery["embedding_copies"] == 2
    assert len({json.dumps(cell.name) for cell in found}) == len(found)


def test_a_policy_that_there_is_not_is_left_out_with_its_reason() -> None:
    why = refused(RIG, Row("later", {"policy": "later"}))
    assert why.startswith("recovery.policy: ") and "\n" not in why


def test_bytes_are_those_of_the_large_model() -> None:
    small, large = (RIG.manifest(shape, NO_DATA, 0, {"policy": "none"}) for shape in (RIG.small, RIG.large))
    scale = Scale(*scales(RIG, small, large))
    route = Route(0, (Hop(0, "a"), Hop(1, "b"), Hop(0, "a")))
    header = PipeHeader(BALLOT, 1, 1, "p", "forward", 1, route)
    tokens = RIG.small.tokens // RIG.num_microbatches
    assert scale.payload(header, 2 * tokens * RIG.small.hidden) == 2 * 21 * 1024 * 1024
    assert scale.state(1, 4 * 65_664) == pytest.approx(4 * 4 * (4 * 1024**2 + 3 * 1024 * 4096 + 2 * 1024))
    for stage in range(7):
        elements = stage_parameters(large, stage)
        assert stage_parameters(small, stage) / scale.piece(stage, 1 << 21) == pytest.approx(elements / (1 << 21), rel=0.01)
    part = ReduceHeader(BALLOT, 1, 1, 0, "part", 0, 1)
    assert scale.payload(part, 1000) == scale.state(0, 1000) == round(1000 * 65_537_024 / 262_208)


def test_what_goes_over_one_line_goes_one_after_the_other() -> None:
    links = Regions(RIG, Random(1))
    links.place |= {"a": "Australia", "b": "Belgium", "c": "London", "d": "Belgium"}
    mib_s = RIG.link("Australia", "Belgium").mib_s
    [first] = links.payload("a", "b", 0.0, 10 * MIB).arrivals
    assert first == pytest.approx(10 / mib_s + 0.129, rel=0.05)
    [second] = links.payload("a", "c", 0.0, 10 * MIB).arrivals
    assert second == pytest.approx(10 / mib_s + 10 / RIG.link("Australia", "London").mib_s + 0.132, rel=0.05)
    [near] = links.payload("d", "b", 100.0, 10 * MIB).arrivals
    assert near - 100.0 == pytest.approx(10 / RIG.within.mib_s, rel=0.05)


def test_copies_take_the_time_of_the_large_model_s_bytes_and_are_counted() -> None:
    async def body() -> float:
        links = Regions(RIG, Random(1))
        links.place |= {"a": "Australia", "b": "Belgium"}
        library = RegionLibrary(Random(1), links=links, scale=Scale(1.0, (1.0, 256.0)))
        now = asyncio.get_running_loop().time
        begun = now()
        await library.travel(1, 0, "b", "a")
        assert now() - begun == pytest.approx(0.129)
        await library.travel(1, 4 * MIB, "b", "a")
        await library.saved("a", 1, MIB)
        await library.loaded("a", 1, MIB)
        assert library.counted == {"transfer": 1024 * MIB, "save": 256 * MIB, "restore": 256 * MIB}
        return now() - begun

    iowa = RIG.link("Australia", "Iowa").mib_s
    expected = 1024 / RIG.link("Australia", "Belgium").mib_s + 2 * 256 / iowa
    assert run_virtual(body()) == pytest.approx(expected, rel=0.02)


def test_one_computation_at_a_time_backward_first() -> None:
    order: list[tuple[str, int]] = []
    turns = Turns()

    async def compute(op: str, microbatch: int, attempt: int = 1) -> None:
        async with turns.turn(Work(op, 1, 5, attempt, microbatch)):  # type: ignore[arg-type]
            order.append((op, microbatch))
            await asyncio.sleep(1.0)

    async def refused() -> None:
        with pytest.raises(PeerError, match="given up"):
            await compute("backward", 0, attempt=0)

    async def body() -> float:
        begun = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            asked = [("forward", 0), ("forward", 2), ("forward", 1), ("backward", 3), ("head", 4)]
            tasks = [group.create_task(compute(*what)) for what in asked]
            stale = group.create_task(refused())
            await asyncio.sleep(0.5)
            turns.forget(1, (5, 0))
            await stale
            tasks[1].cancel()
        return asyncio.get_running_loop().time() - begun

    assert run_virtual(body()) == pytest.approx(4.0)
    assert order == [("forward", 0), ("backward", 3), ("head", 4), ("forward", 1)]


def test_a_pass_takes_what_the_large_layers_take() -> None:
    both = sum(work_s(RIG, Work(op, 1, 1, 1, 0)) for op in ("forward", "backward"))  # type: ignore[arg-type]
    assert both == pytest.approx(0.055 * 4 * 21)
    assert work_s(RIG, Work("head", 0, 1, 1, 0)) == 3 * work_s(RIG, Work("head", 0, 1, 0, 0, evaluate=True))
    assert work_s(RIG, Work("embed", 0, 1, 1, 0)) == 0.0
    assert work_s(RIG, Work("redundant", 1, 1, 1, 0)) == work_s(RIG, Work("forward", 1, 1, 1, 0))
    assert work_s(RIG, Work("redundant", 0, 1, 1, 0)) == work_s(RIG, Work("head", 0, 1, 0, 0, evaluate=True))


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--policy", "exact"], "--policy exact: use one of none, checkpoint_10"),
        (["--rate", "33"], "--rate 33: the plan has 0, 16"),
        (["--seed", "7"], "--seed 7: the plan has 0"),
        (["--policy", "none", "--rate", "16"], "no run is of this policy at this rate"),
    ],
)
def test_what_there_is_not_is_told_before_anything_is_done(
    words: list[str], wanted: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "grid", "--quick", "--work", str(tmp_path), *words]) == 2
    told = capfd.readouterr().err
    assert wanted in told
    assert len(told.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_plan_that_cannot_be_used_is_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(UnusableError, match="cannot be read"):
        read_plan(path)
    path.write_text(Plan.model_dump_json(PLAN).replace('"target_loss"', '"target"', 1))
    with pytest.raises(UnusableError, match="target_loss: Field required") as found:
        read_plan(path)
    assert "\n" not in str(found.value)
    path.write_text(Plan.model_dump_json(PLAN.model_copy(update={"version": 9})))
    with pytest.raises(UnusableError, match="version 9; this program reads 2"):
        read_plan(path)

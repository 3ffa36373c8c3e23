"""The sparse world of a thousand nodes against the full one: the same swarm, the same losses, the same course."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.sim.faults import Strike
from node.sim.scale import Lived, Scale, Wanted, main
from node.sim.sparse import KEPT_STEPS, SparseWorld
from node.sim.traffic import FRAME_BYTES, Traffic, kind_of
from node.transport.frames import encode_message
from node.transport.names import Names
from protocol.commands import Note
from protocol.ids import Ballot
from protocol.messages import Decide, Heartbeat, VoidStep
from protocol.records import Roster

SMALL = Wanted(nodes=10, stages=4, microbatches=8, hours=0.1, loss=0.99, busy_s=10.0, pinned=True, seed=5)


def both(wanted: Wanted) -> tuple[Lived, Lived]:
    """(in the full world, in the sparse one)"""
    return Scale(replace(wanted, full=True)).run(), Scale(wanted).run()


def assert_alike(full: Lived, sparse: Lived) -> None:
    """Chance differs in when messages arrive, not in who is lost when: a step or two more or less, no other recovery."""
    assert sparse.losses == full.losses > 0
    assert sparse.returns == full.returns
    assert sparse.recoveries == full.recoveries
    assert sparse.step_s == pytest.approx(full.step_s, rel=0.05)
    assert abs(sparse.commits - full.commits) <= 2 + full.commits // 10
    assert sparse.takeovers == full.takeovers
    assert sparse.ordinary_bytes == pytest.approx(full.ordinary_bytes, rel=0.2)
    assert sparse.coordinator_bytes == pytest.approx(full.coordinator_bytes, rel=0.2)


def test_the_sparse_world_takes_the_course_of_the_full_one() -> None:
    full, sparse = both(SMALL)
    assert_alike(full, sparse)
    assert sparse.recoveries, "nothing regrew: the test shows little"
    assert sparse.events < full.events / 3


@pytest.mark.full
@pytest.mark.timeout(300)
def test_over_several_seeds_it_commits_and_regrows_as_much() -> None:
    """One swarm's course hangs on moments: the coordinator may be lost just before it commits or just after."""
    wanted = replace(SMALL, hours=0.3, loss=0.8)
    pairs = [both(replace(wanted, seed=seed)) for seed in range(10, 14)]
    for full, sparse in pairs:
        assert (sparse.losses, sparse.returns) == (full.losses, full.returns)
    assert sum(sparse.goodput for _, sparse in pairs) == pytest.approx(sum(full.goodput for full, _ in pairs), rel=0.15)
    assert abs(sum(sum(s.recoveries.values()) - sum(f.recoveries.values()) for f, s in pairs)) <= 2


def test_what_is_over_or_not_rare_is_not_kept() -> None:
    """A day of a thousand nodes takes no more memory than its first hours."""
    scale = Scale(replace(SMALL, hours=0.1))
    scale.run()
    watch, world = scale.watch, scale.world
    assert isinstance(world, SparseWorld)
    assert watch.step > KEPT_STEPS + 1, "nothing was over: the test shows nothing"
    assert min(step for step, _ in watch.owners.amendments) == watch.step - KEPT_STEPS
    assert world.told["suspected"]
    assert not [what for _, _, what in world.story if isinstance(what, Note) and what.type == "suspected"]


def test_a_sparse_swarm_is_a_function_of_its_seed() -> None:
    first, again = (Scale(replace(SMALL, hours=0.03)).run() for _ in range(2))
    assert replace(first, cpu_s=again.cpu_s) == again


def test_who_has_no_reason_sleeps_and_wakes_when_a_neighbour_dies() -> None:
    scale = Scale(replace(SMALL, loss=0.0, hours=0.0))
    scale.run()
    world = scale.world
    assert isinstance(world, SparseWorld)
    world.run(lambda: False, 20.0)
    before = world.num_ticks
    world.run(lambda: False, 10.0)
    assert world.num_ticks - before <= 2 * 40, "more look at the clock than the coordinator and a learner"
    victim = next(node for node in world.alive() if not node.spec.founder)
    world.hit(victim, Strike("crash", 0, 0, "forward"))
    before = world.num_ticks
    world.run(lambda: False, 2.0)
    assert world.num_ticks - before > 3 * 8


def test_bytes_are_those_of_the_wire() -> None:
    ballot = Ballot(1, "a")
    void, decide = VoidStep(ballot, 1, 1, "why"), Decide(ballot, Roster("", 0, (), (), ()), ())
    traffic = Traffic()
    names, sizes = Names(), []
    for message in (void, decide, Heartbeat(1, ballot, "", 0, 0)):
        sizes.append(len(encode_message(message, names)) + FRAME_BYTES)
        traffic.note("a", "b", message)
        traffic.note("a", "a", message)
    assert kind_of(decide) == "Decide Roster"
    assert traffic.sent["a"]["VoidStep"] == sizes[0]
    assert traffic.received["b"] == traffic.sent["a"]
    assert traffic.of("b")["control"] == sizes[0] + sizes[1]
    assert traffic.mean("Heartbeat") == sizes[2]
    traffic.forget()
    assert traffic.of("b")["control"] == 0
    traffic.note("b", "a", void)
    traffic.note("a", "b", void)
    assert traffic.received["b"]["VoidStep"] < sizes[0] == traffic.sent["b"]["VoidStep"], "named before"


MOST_BYTES, MOST_HEARTBEAT_BYTES = 2000, 64


def test_what_the_coordinator_says_is_little() -> None:
    """At 32 block stages, per node and step; and no node hears or says more than that itself."""
    lived = Scale(Wanted(nodes=50, microbatches=16, hours=0.0)).run()
    assert 500 < lived.coordinator_bytes <= MOST_BYTES
    assert lived.ordinary_bytes <= MOST_BYTES
    assert 20 < lived.heartbeat_bytes <= MOST_HEARTBEAT_BYTES


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_larger_swarm_says_no_more_per_node() -> None:
    few, many = (Scale(Wanted(nodes=nodes, hours=0.0)).run() for nodes in (50, 150))
    assert many.ordinary_bytes <= 1.1 * few.ordinary_bytes
    assert many.coordinator_bytes <= MOST_BYTES


@pytest.mark.parametrize("arguments", [["--nodes", "9"], ["--loss", "1"]])
def test_a_swarm_that_cannot_be_is_refused_in_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert "--nodes must be more than --stages" in capsys.readouterr().err

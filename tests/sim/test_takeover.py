"""The coordinator goes in the middle of a step, at each point where it does something: the others go on without it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from node.sim.faults import COORDINATOR_PHASES, SEAT_PHASES, Phase, Strike
from node.sim.machine import BrokenError
from node.sim.nodes import NodeSpec, SimNode
from node.sim.scenario import make_scenario, make_takeover
from node.sim.trial import Trial
from protocol.commands import Note
from protocol.ids import Member
from protocol.node_state import NodeState
from protocol.takeover import ranks

SEEDS = range(3)
MORE_SEEDS = range(100, 108)
ELECTION_S = 4.5
"""After the lapse: until a quorum has noticed it too, and for the promises; seldom for a second try."""


def goes_on(seed: int, phase: Phase, tally: Counter[str]) -> None:
    """It must commit at least 5 more steps and end in order (`Trial`); here: how soon somebody leads."""
    scenario = make_takeover(seed, phase)
    trial = Trial(scenario)
    try:
        lived = trial.run()
    except BrokenError as error:
        pytest.fail(f"{error}\n  {'; '.join(error.__notes__)}")
    if lived.verdict == "waits for coordinator" and has_lost_a_sibling(trial):
        tally.update({"no takeover: its sibling had moved elsewhere": 1})
        return
    tally.update({f"takeover before {phase}": 1})
    assert lived.verdict == "went on"
    fired, who = next((at, node) for at, node, what in trial.world.story if str(what).startswith("FAULT"))
    assert who.startswith(trial.founder.peer), "somebody else was struck"
    led = [at - fired for at, _, what in trial.world.story if isinstance(what, Note) and what.type == "took_over"]
    if lived.fired == "crash":
        assert led, "the last steps were decided without a coordinator"
        assert led[0] <= scenario.manifest.timing.lapse_s + ELECTION_S
        tally["slowest takeover in ms"] = max(tally["slowest takeover in ms"], round(1000 * led[0]))


def has_lost_a_sibling(trial: Trial) -> bool:
    """Did another replica of stage 0, where the coordinator sits, move to a starved stage? Then it alone held stage 0."""
    notes = [what for _, _, what in trial.world.story if isinstance(what, Note)]
    return any(note.type == "moved" and note.fields["stage"] == 0 for note in notes)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("phase", COORDINATOR_PHASES)
def test_the_swarm_goes_on_without_its_coordinator(phase: Phase, tally: Counter[str]) -> None:
    for seed in SEEDS:
        goes_on(seed, phase, tally)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("phase", SEAT_PHASES)
def test_it_may_go_while_its_own_seat_works(phase: Phase, tally: Counter[str]) -> None:
    goes_on(0, phase, tally)


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("phase", COORDINATOR_PHASES + SEAT_PHASES)
def test_more_swarms_go_on_without_their_coordinator(phase: Phase, tally: Counter[str]) -> None:
    for seed in MORE_SEEDS:
        goes_on(seed, phase, tally)


def test_the_old_coordinator_is_fenced_when_it_thaws() -> None:
    """It comes back with its ballot, its open step and its proposal, and becomes a spare or an ordinary member."""
    seed = next(s for s in range(100) if _freezes(s))
    trial = Trial(make_takeover(seed, "decide"))
    trial.run()
    old = trial.world.nodes[trial.founder.peer]
    assert old.state.coordinator is None  # type: ignore[attr-defined]
    assert old.state.ballot.peer != trial.founder.peer  # type: ignore[attr-defined]
    assert any(what == "thaws" for _, node, what in trial.world.story if node == repr(old))


def _freezes(seed: int) -> bool:
    strike = make_takeover(seed, "decide").strike
    return strike.kind == "freeze" and strike.for_s > 3 * make_scenario(seed).manifest.timing.lapse_s


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", [6, 14])
def test_it_goes_as_soon_as_another_one_holds_its_stage(seed: int) -> None:
    """Nobody has heard of that record yet but those that voted for it. Policy `none`: for a sole holder they would wait."""
    trial = parted(seed)
    world, watch, old = trial.world, trial.watch, trial.founder
    assert trial.manifest.recovery.policy == "none"
    stage = next(stage for stage, member in watch.place.seats if member == old)
    for sibling in watch.place.holders(stage):
        if sibling != old:
            world.hit(world.nodes[sibling.peer], Strike("crash", 0, 0, "forward"))
    assert world.run(lambda: watch.place.holders(stage) == [old], 60.0)
    newcomer = NodeSpec(Member("late", 1), "late", False, stage, 0.01)
    world.boot(newcomer, world.now)
    assert world.run(lambda: newcomer.member in watch.place.holders(stage), 200.0)
    world.hit(world.nodes[old.peer], Strike("crash", 0, 0, "forward"))
    assert all(newcomer.member not in holders_at(node, stage) for node in world.alive())
    before = watch.step
    assert world.run(lambda: watch.step >= before + 3, 60.0), [node.says for node in world.alive()]


def holders_at(node: SimNode, stage: int) -> list[Member]:
    """As the node knows."""
    assert isinstance(node.state, NodeState)
    return [seating.member for seating in node.state.chain.holders(stage)]


# ---- links break, nobody dies ----


def parted(seed: int) -> Trial:
    """A swarm that has committed 4 steps; its strike never comes."""
    scenario = make_takeover(seed, "open")
    trial = Trial(replace(scenario, strike=replace(scenario.strike, at_step=1 << 30)))
    assert trial.world.run(lambda: trial.watch.step >= 4, 200.0)
    return trial


@pytest.mark.parametrize("seed", range(4))
def test_a_coordinator_that_is_cut_off_decides_nothing_and_comes_back_as_a_member(seed: int) -> None:
    trial = parted(seed)
    world, watch, old = trial.world, trial.watch, trial.founder.peer
    begins = world.now
    for peer in world.nodes:
        if peer != old:
            trial.faults.cut((old, peer), (begins, begins + 1000.0))
    before = watch.step
    assert world.run(lambda: watch.step >= before + 3, 90.0), "the others go on"
    state = world.nodes[old].state
    assert isinstance(state, NodeState)
    assert state.coordinator, "it does not know yet"
    assert state.chain.step <= before + 1
    for cut in list(trial.faults.weather.cuts):
        trial.faults.weather.cuts.remove(cut)
    assert world.run(lambda: state.coordinator is None, 10.0), "fenced by the ballot"
    assert world.run(lambda: state.chain.head == watch.head or watch.step >= trial.scenario.manifest.last_step, 60.0)
    assert world.run(lambda: watch.step >= trial.scenario.manifest.last_step, 200.0), "and in nobody's way"


@pytest.mark.parametrize("seed", range(4))
def test_one_broken_link_to_the_coordinator_changes_at_most_the_ballot(seed: int) -> None:
    """The node that would be next no longer hears the coordinator, everybody else does: nobody promises it anything."""
    trial = parted(seed)
    world, watch, old = trial.world, trial.watch, trial.founder.peer
    state = world.nodes[old].state
    assert isinstance(state, NodeState)
    heir = next(m.peer for m in ranks(state.chain, trial.scenario.manifest.num_stages) if m.peer != old)
    trial.faults.cut((old, heir), (world.now, world.now + 9.0))
    world.run(lambda: False, 9.0)
    taken = [what for _, _, what in world.story if isinstance(what, Note) and what.type == "took_over"]
    assert not taken, "a quorum heard the coordinator all the time"
    last = trial.scenario.manifest.last_step
    assert world.run(lambda: watch.step >= last, 200.0), f"step {watch.step}: {[n.says for n in world.alive()]}"

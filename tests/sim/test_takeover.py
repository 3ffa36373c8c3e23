"""The coordinator goes in the middle of a step, at each point where it does something: the others go on without it."""

from __future__ import annotations

from collections import Counter

import pytest

from node.sim.faults import COORDINATOR_PHASES, Phase
from node.sim.machine import BrokenError
from node.sim.scenario import make_scenario, make_takeover
from node.sim.trial import Trial
from protocol.commands import Note

SEEDS = range(3)
MORE_SEEDS = range(100, 125)
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
    tally.update({f"takeover before {phase}": 1})
    assert lived.verdict == "went on"
    fired = next(at for at, _, what in trial.world.story if str(what).startswith("FAULT"))
    led = [at - fired for at, _, what in trial.world.story if isinstance(what, Note) and what.type == "took_over"]
    if lived.fired == "crash":
        assert led, "the last steps were decided without a coordinator"
        assert led[0] <= scenario.manifest.timing.lapse_s + ELECTION_S
        tally["slowest takeover in ms"] = max(tally["slowest takeover in ms"], round(1000 * led[0]))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("phase", COORDINATOR_PHASES)
def test_the_swarm_goes_on_without_its_coordinator(phase: Phase, tally: Counter[str]) -> None:
    for seed in SEEDS:
        goes_on(seed, phase, tally)


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("phase", COORDINATOR_PHASES)
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

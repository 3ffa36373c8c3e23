"""Every kind of simulated swarm by name, and its story: what `regrow sim` shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from node.sim.churn import Churn
from node.sim.cut_off import CutOff
from node.sim.faults import COORDINATOR_PHASES, SEAT_PHASES
from node.sim.going_back import GoingBack
from node.sim.leaving import Leaving
from node.sim.life import Life
from node.sim.mixed import Mixed
from node.sim.mixture import Options
from node.sim.parting import Parting
from node.sim.redundancy import ExactShadow, Redundant
from node.sim.regrowth import Regrowth
from node.sim.remnant import Remnant, Scattered
from node.sim.rerouting import Rerouting
from node.sim.scenario import make_scenario, make_takeover
from node.sim.shadow_life import ShadowLife
from node.sim.story import scenario_of, story_of
from node.sim.trial import Trial

TAKEOVERS = {f"takeover-{phase}": phase for phase in (*COORDINATOR_PHASES, *SEAT_PHASES)}


NARROW: dict[str, Callable[[int], Life[Any]]] = {
    Trial.name: lambda seed: Trial(make_scenario(seed)),
    Churn.name: Churn,
    Parting.name: Parting,
    Regrowth.name: Regrowth,
    GoingBack.name: GoingBack,
    ShadowLife.name: ShadowLife,
    Leaving.name: Leaving,
    Remnant.name: Remnant,
    Scattered.name: Scattered,
    CutOff.name: CutOff,
    Rerouting.name: Rerouting,
    Redundant.name: Redundant,
    ExactShadow.name: ExactShadow,
    **{name: lambda seed, phase=phase: Trial(make_takeover(seed, phase)) for name, phase in TAKEOVERS.items()},  # type: ignore[misc]
}
"""Lives in which only one thing happens. `takeover-PHASE`: the coordinator goes before it does this."""


def make_life(name: str, options: Options) -> Life[Any]:
    """Raises `ValueError` for a name that there is not, or where the life has its own number of nodes and faults."""
    if name == Mixed.name:
        return Mixed(options)
    if name not in NARROW:
        raise ValueError(f"--life {name}: there is no such life; there are mixed, {', '.join(NARROW)}")
    if options != Options(options.seed):
        raise ValueError(f"--life {name} has nodes and faults of its own: leave --nodes and --faults out")
    return NARROW[name](options.seed)


def tell(life: Life[Any], limit: int) -> list[str]:
    """The swarm, and the last `limit` lines of what happened in it."""
    head: list[str] = []
    if isinstance(life, Mixed):
        head = life.mixture.told()
    elif isinstance(life, Trial):
        head = scenario_of(life.scenario)
    return head + story_of(life.world, life.watch, limit)


def told_of(lived: Any) -> dict[str, Any]:
    """What came of a life, as plain data; only what is the same for all of them unless it was a mixed one."""
    names = ("seed", "verdict", "why", "commits", "steps", "possible", "events", "virtual_s", "fired", "recoveries")
    return {name: getattr(lived, name) for name in names if hasattr(lived, name)}

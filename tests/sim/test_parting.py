"""Swarms that are parted in two for a while: each side goes on if it can, and they become one again, with everybody in it.
`node.sim.invariants` is checked after every event, per lineage; `node.sim.parting` says what must come of it.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import Any

import pytest

from node.sim.heap import World
from node.sim.machine import BrokenError
from node.sim.nodes import SimNode
from node.sim.parting import Parting, live_parted
from protocol.events import MessageReceived
from protocol.fork import fork_roster
from protocol.ids import Ballot
from protocol.messages import Meeting

SEEDS = range(30)
MORE_SEEDS = range(1000, 1200)
MAX_TOLD = 5


def live_through_all(seeds: range, tally: Counter[str]) -> None:
    mine: Counter[str] = Counter()
    broken = []
    for seed in seeds:
        try:
            lived = live_parted(seed)
        except BrokenError as error:
            broken.append(f"{error}\n  {'; '.join(error.__notes__)}")
            continue
        mine.update(parted=1, forks=lived.forks, merged=lived.merges, events=lived.events)
        mine["two lineages"] += lived.counts["lineages at the end of the cut"] > 1
    tally.update({f"parting: {what}": count for what, count in mine.items()})
    told = "\n".join(broken[:MAX_TOLD])
    assert not broken, f"{len(broken)} of {len(seeds)} seeds broke:\n{told}"
    assert mine["forks"] >= len(seeds) // 2, f"too few sides went on without a quorum: {mine}"
    assert mine["two lineages"] >= len(seeds) // 2, f"too few seeds had two lineages: {mine}"
    assert mine["merged"] >= mine["forks"], f"lineages that met did not become one: {mine}"


@pytest.mark.timeout(180)
def test_parted_swarms_become_one_again(tally: Counter[str]) -> None:
    live_through_all(SEEDS, tally)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_more_parted_swarms_become_one_again(tally: Counter[str]) -> None:
    live_through_all(MORE_SEEDS, tally)


# ---- it would notice ----


def test_a_fork_without_promises_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    everybody = lambda chain, ballot, _stay, me: fork_roster(chain, ballot, set(chain.members()), me)  # noqa: E731
    monkeypatch.setattr("protocol.candidate.fork_roster", everybody)
    with pytest.raises(BrokenError, match="promised"):
        deque(map(live_parted, SEEDS), maxlen=0)


def test_lineages_that_never_meet_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.meeting.Meetings.look", lambda _self, _rivals, _stand, _now: [])
    monkeypatch.setattr("node.sim.parting.WHOLE_S", 60.0)
    with pytest.raises(BrokenError, match="not one again"):
        deque(map(live_parted, SEEDS), maxlen=0)


# ---- who does not make a swarm yield ----


def test_a_strangers_claim_makes_nobody_yield() -> None:
    """It says that it is further, and is in the directory as a coordinator."""
    life = Parting(0)
    world, watch = life.world, life.watch
    for spec in life._specs:
        world.boot(spec, 0.0)
    assert world.run(lambda: watch.step >= 3, 200.0)
    lead = world.nodes["peer00"]
    for word in ("stands", "accepts"):
        tell(world, lead, Meeting(word, Ballot(9, "zz"), "f" * 32, 1000, True, (replace(lead.spec.member, peer="zz"),)))
    before = watch.step
    assert world.run(lambda: watch.step >= before + 3, 100.0), "the run goes on"
    assert not [what for _, _, what in world.story if getattr(what, "type", "") == "yielded"]
    assert [what for _, _, what in world.story if getattr(what, "type", "") == "refused"]


def tell(world: World, node: SimNode, message: Any) -> None:
    world.handle(node, MessageReceived(message.ballot.peer, 1, message))

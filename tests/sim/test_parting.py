"""Swarms that are parted in two for a while: each side goes on if it can, and they become one again, with everybody in it.
Swarms of which most voters die at once, with stages; and one node that is cut off and trains alone. `node.sim.invariants` is
checked after every event, per lineage; `node.sim.parting`, `remnant` and `cut_off` say what must come of it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from node.sim.cut_off import CutOff
from node.sim.heap import World
from node.sim.machine import BrokenError
from node.sim.nodes import SimNode
from node.sim.parting import Parting, live_parted
from node.sim.remnant import Remnant, Scattered
from protocol.chain import Chain
from protocol.events import MessageReceived
from protocol.fork import fork_roster, unmakeable
from protocol.ids import Ballot, Member
from protocol.lineage import Meeting
from protocol.messages import Prepare
from protocol.takeover import Takeover

SEEDS = range(30)
"""In the last one a side that lacks a stage makes it again."""
MORE_SEEDS = range(1000, 1080)
FEW_SEEDS = range(5)
SOME_SEEDS = range(1000, 1025)
MAX_TOLD = 5


def live_through_all(seeds: Sequence[int], tally: Counter[str]) -> None:
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
        mine["one gave way that had parted with a loss"] += lived.counts["one gave way that had parted with a loss"]
    tally.update({f"parting: {what}": count for what, count in mine.items()})
    told = "\n".join(broken[:MAX_TOLD])
    assert not broken, f"{len(broken)} of {len(seeds)} seeds broke:\n{told}"
    assert mine["one gave way that had parted with a loss"], f"nobody parted with a loss: {mine}"
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


# ---- with a loss ----


@pytest.mark.timeout(120)
def test_those_that_are_left_of_most_go_on(tally: Counter[str]) -> None:
    """L1: within fork_after_s, lapse, grace, transfer and two steps, though the coordinator is gone and a stage with it."""
    live_bereft(FEW_SEEDS, tally)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_more_that_are_left_of_most_go_on(tally: Counter[str]) -> None:
    live_bereft(SOME_SEEDS, tally)


def live_bereft(seeds: range, tally: Counter[str]) -> None:
    mine: Counter[str] = Counter()
    for seed in seeds:
        left = Remnant(seed).run()
        counts = left.counts
        mine.update(swarms=1, lost=left.num_lost, forks=counts["forks with a loss"], rebuilds=counts["rebuilds"])
        mine["copied in time"] += counts["copied in time"]
    tally.update({f"left of most: {what}": count for what, count in mine.items()})
    assert mine["forks"] >= len(seeds), f"each must have parted from the dead: {mine}"
    assert mine["rebuilds"] + mine["copied in time"] >= mine["lost"], f"a lost stage did not come back: {mine}"
    assert mine["rebuilds"] >= len(seeds), f"each must have lost a stage: {mine}"


@pytest.mark.full
@pytest.mark.timeout(600)
def test_those_that_are_left_find_each_other(tally: Counter[str]) -> None:
    """One of them was cut off when the others went on, or went on alone."""
    mine: Counter[str] = Counter()
    for seed in SOME_SEEDS:
        mine.update(Scattered(seed).run().counts)
    tally.update({"scattered: forks": mine["forks"], "scattered: with a loss": mine["forks with a loss"]})
    assert mine["forks with a loss"] >= len(SOME_SEEDS), mine


@pytest.mark.timeout(120)
def test_who_trained_alone_gives_way_though_it_is_ahead(tally: Counter[str]) -> None:
    live_alone(FEW_SEEDS, tally)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_more_that_trained_alone_give_way(tally: Counter[str]) -> None:
    live_alone(SOME_SEEDS, tally)


def live_alone(seeds: range, tally: Counter[str]) -> None:
    for seed in seeds:
        life = CutOff(seed)
        life.run()
        assert life.counts["steps ahead"] > 0
        tally.update({"trained alone": 1, "trained alone: steps ahead": life.counts["steps ahead"]})


# ---- it would notice ----


def test_a_lineage_that_counts_no_loss_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chain, "lossy_forks", property(lambda _self: 0, lambda _self, _count: None), raising=False)
    monkeypatch.setattr("node.sim.cut_off.LIMIT_S", 100.0)
    with pytest.raises(BrokenError, match="it does not give way"):
        CutOff(0).run()


def test_parting_from_a_holder_that_is_heard_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that answer are asked, and who holds a stage may be late to promise."""
    monkeypatch.setattr("protocol.candidate.may_part", lambda chain, stay, _heard: not unmakeable(chain, stay))
    monkeypatch.setattr("protocol.takeover.Takeover.on_prepare", refuses_now_and_then(Takeover.on_prepare))
    with pytest.raises(BrokenError, match="S4"):
        deque((Remnant(seed).run() for seed in SEEDS), maxlen=0)


def refuses_now_and_then(on_prepare: Callable[..., bool]) -> Callable[..., bool]:
    """A member that is asked to go on without a quorum promises later than it must."""

    def refuses(self: Takeover, sender: Member, asked: Prepare, now: float) -> bool:
        if asked.forks and sender != self._me and asked.ballot.term < 4:
            return False
        return on_prepare(self, sender, asked, now)

    return refuses


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
    for spec in life.specs:
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

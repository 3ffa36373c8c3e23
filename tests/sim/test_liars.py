"""Peers that send well-formed nonsense: no node breaks, nothing wrong is decided, and the swarm goes on.

A *guest* has a key and a lease and no seat; what it says must not even slow the swarm down. A *member* holds a seat, works
honestly beside its lies, and can hold the swarm up for as long as it lies; not longer.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from node.sim.faults import Faults
from node.sim.heap import World
from node.sim.invariants import Invariants
from node.sim.network import Network
from node.sim.nodes import NodeSpec, SimNode, real_state
from node.sim.scenario import Scenario, make_scenario
from protocol.commands import Command, Note
from protocol.events import Event
from protocol.ids import Member
from protocol.manifest import from_mapping
from protocol.messages import Goodbye, Heartbeat, Leave, Order, Wish
from protocol.node_state import NodeState
from tests.tools.lies import Liar

START_S, LYING_S, LIMIT_S = 200.0, 20.0, 200.0
LIES_PER_S = 50
GUEST = Member("peer99", 1)


class Mute:
    """A guest's own decisions: none."""

    def handle(self, _event: Event, _now: float) -> list[Command]:
        return []


def spare_peers(scenario: Scenario) -> list[str]:
    """Nodes without which the swarm can go on: others hold their stage, and they did not found the run."""
    wished = Counter(spec.wished_stage for _, spec in scenario.nodes)
    return [
        spec.member.peer
        for _, spec in scenario.nodes
        if not spec.founder and spec.wished_stage >= 0 and wished[spec.wished_stage] > 1
    ]


class Swarm:
    """A sound swarm of a random shape, and one node in it that lies; a member that does has a sibling at its stage."""

    def __init__(self, seed: int, *, is_guest: bool) -> None:
        scenario = next(s for s in map(make_scenario, count(seed, 1000)) if is_guest or spare_peers(s))
        self.manifest = from_mapping(scenario.manifest.model_dump() | {"max_steps": 100_000})
        rng = self.rng = random.Random(f"liars {seed}")
        faults = Faults()
        founder = next(spec for _, spec in scenario.nodes if spec.founder)
        self.watch = Invariants(self.manifest, founder.member)
        self.world = World(self.manifest, rng, Network(rng, faults.weather), faults, self.watch, real_state)
        self.watch.now = lambda: self.world.now
        for at, spec in scenario.nodes:
            self.world.boot(spec, at)
        assert self.world.run(lambda: self.watch.step >= 2, START_S), "it does not even begin"
        self.founder = self.world.nodes[founder.member.peer]
        guest = SimNode(NodeSpec(GUEST, "guest", False), Mute(), "guest:1", 0.0)
        self.node = guest if is_guest else self.world.nodes[rng.choice(spare_peers(scenario))]
        self.sent: Counter[str] = Counter()

    def truth(self, node: SimNode) -> NodeState:
        assert isinstance(node.state, NodeState)
        return node.state

    def lie_for(self, seconds: float, make: Callable[[Liar], object]) -> None:
        """Tell everybody lies at random moments."""
        until, own = self.world.now + seconds, self.node
        liar = Liar(self.rng, own.spec.member, self.truth(self.founder if own.peer == GUEST.peer else own))
        while self.world.now < until:
            self.world.run(lambda: False, self.rng.expovariate(LIES_PER_S))
            receiver = self.rng.choice([node for node in self.world.alive() if node is not own])
            if self.rng.random() < 0.2:
                header = liar.header()
                self.world.post(self.world.now, receiver, self.world._arrive, receiver, own, header, 0)
                self.sent["payload"] += 1
            else:
                message = make(liar)
                self.world.post(self.world.now, receiver, self.world._deliver, receiver, own, message)
                self.sent[type(message).__name__] += 1

    def goes_on(self) -> None:
        before = self.watch.step
        assert self.world.run(lambda: self.watch.step >= before + 3, LIMIT_S), self.situation()

    def situation(self) -> str:
        said = [f"{node!r} says: {node.says}" for node in self.world.alive()]
        return "\n".join([f"stuck at step {self.watch.step}; sent {dict(self.sent)}", *said])


def a_lie(liar: Liar) -> object:
    """Anything but an honest wish, or that the liar leaves itself; orders are checked at the edge, by their signature. A
    member's heartbeats are its own: what it says of its step comes back to it, and would keep only itself from working."""
    while True:
        message = liar.message()
        honest = isinstance(message, Wish | Goodbye | Leave) and message.member == liar.me
        if not honest and not isinstance(message, Order) and (liar.me == GUEST or not isinstance(message, Heartbeat)):
            return message


def seeds(quick: int, full: int) -> list[Any]:
    return [*range(quick), *(pytest.param(number, marks=pytest.mark.full) for number in range(quick, full))]


@pytest.mark.parametrize("number", seeds(3, 25))
def test_what_a_guest_says_changes_nothing(number: int) -> None:
    undisturbed, swarm = Swarm(number, is_guest=True), Swarm(number, is_guest=True)
    before = swarm.watch.step
    undisturbed.world.run(lambda: False, LYING_S)
    swarm.lie_for(LYING_S, a_lie)
    assert abs(swarm.watch.step - undisturbed.watch.step) <= 0.1 * (undisturbed.watch.step - before) + 1, swarm.situation()
    voids = [what for _, _, what in swarm.world.story if isinstance(what, Note) and what.type == "voided"]
    assert not voids, voids[:3]
    assert {m.peer for m in swarm.truth(swarm.founder).chain.members()}.isdisjoint({GUEST.peer})
    swarm.goes_on()
    assert sum(swarm.sent.values()) > 0.5 * LIES_PER_S * LYING_S
    assert len(swarm.sent) > 20, "too few kinds of lies"


@pytest.mark.parametrize("number", seeds(4, 40))
def test_what_a_member_says_holds_the_swarm_up_at_most(number: int) -> None:
    swarm = Swarm(number, is_guest=False)
    swarm.lie_for(LYING_S, a_lie)
    swarm.goes_on()

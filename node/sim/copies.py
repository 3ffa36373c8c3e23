"""Simulated catch-up: a learner copies a stage from whoever holds it, late, again and again until it takes part; and simulated
regrowth: a newcomer mixes a lost stage of the states of its neighbours.
"""

from __future__ import annotations

import math
from dataclasses import replace

from node.sim.machine import SimSeat, require
from node.sim.nodes import SimNode
from node.sim.shadow_copies import ShadowCopies
from node.sim.surroundings import Surroundings
from protocol.commands import GoOn, KeepGradients, Learn, MixAhead, Regrow, StopLearning, StopMixing
from protocol.events import Learned, LearningGoesOn
from protocol.ids import hash_of

STATE_BYTES = 12 << 20
ROUND_TRIPS = 4.0
LOOK_AGAIN_S = 0.05
STATE_VECTORS = 3.0
"""A state takes so many times the bytes of a gradient."""


class Copies:
    """Carries out Learn and what ends it. A donor that dies meanwhile is replaced; only what it had is delivered."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self._learning: dict[tuple[SimNode, int], int] = {}
        self.state_bytes, self.look_again_s = STATE_BYTES, LOOK_AGAIN_S
        self._round = 0
        self.ahead: dict[tuple[SimNode, int], tuple[MixAhead, float]] = {}
        """What averagers mix before they are asked, by node and stage, and when it is there."""
        self.shadows = ShadowCopies(world, self._whole, self._is_wanted)
        self.num_copied = self.num_failed = self.num_mixed = self.num_used = 0

    def mix_ahead(self, node: SimNode, command: MixAhead) -> None:
        """A share of a lost stage, of which the node holds one source and fetches the other: also one that it still keeps, but
        has no seat for any more."""
        held = [s.stage in node.seats and node.seats[s.stage].state_id == s.state_id for s in command.sources]
        require(any(held) and len(held) == 2, f"{node!r} is to do {command} and holds {node.seats}")
        network, other = self._world.network, command.sources[held.index(False) if False in held else 1]
        holder = self._holder(node, other.stage, other.state_id)
        rate = min(network.rate(node.peer), network.rate(holder.peer) if holder else math.inf)
        seconds = self.state_bytes / STATE_VECTORS / command.parts / rate * self._world.rng.uniform(1.0, 2.0)
        self.ahead[node, command.stage] = command, self._world.now + seconds

    def stop_mixing(self, node: SimNode, command: StopMixing) -> None:
        """It is of no use any more."""
        del self.ahead[node, command.stage]

    def learn(self, node: SimNode, command: Learn) -> None:
        """A seat without state, to be filled."""
        self._round += 1
        self._learning[node, command.stage] = self._round
        self._world.post(self._world.now, node, self._copy, node, command.stage, self._round, "")

    def go_on(self, node: SimNode, command: GoOn) -> None:
        """What the node kept of a stage is the stage's newest state again."""
        seat, world = node.seats[command.stage], self._world
        require((seat.digest, seat.age) == (command.digest, command.optimizer_age), f"{node!r} goes on with {seat}: {command}")
        seat.state_id, seat.generation = command.state_id, command.generation
        world.watch.goes_on(node, seat)
        facts = (command.step, command.digest, command.optimizer_age, command.lr_factor, command.generation)
        world.post(world.now, node, world.handle, node, Learned(seat.stage, seat.state_id, *facts, (), 0, 0.0))

    def regrow(self, node: SimNode, command: Regrow) -> None:
        """A seat without state, to be made of others'."""
        self._round += 1
        self._learning[node, command.stage] = self._round
        how = self.shadows.restore if command.shadow else self._mix
        self._world.post(self._world.now, node, how, node, command, self._round)

    def _is_wanted(self, node: SimNode, stage: int, round_: int) -> bool:
        return self._learning.get((node, stage)) == round_

    def _mix(self, node: SimNode, command: Regrow, round_: int) -> None:
        """Begin to mix, once somebody holds each source as it is named."""
        if self._learning.get((node, command.stage)) != round_:
            return
        world = self._world
        found = [self._holder(node, source.stage, source.state_id) for source in command.sources]
        if None in found:
            world.post(world.now + self.look_again_s, node, self._mix, node, command, round_)
            return
        donors = [donor for donor in found if donor]
        seconds = max([self._seconds(node, donor, first=False) for donor in donors], default=0.0)
        seconds = max([seconds, *(self._mixed_in_s(donor, command, seconds) for donor in donors)])
        world.handle(node, LearningGoesOn(command.stage, 0, self.state_bytes, seconds, len(donors)))
        world.post(world.now + seconds, node, self._mixed, node, command, round_, donors, seconds)

    def _mixed_in_s(self, donor: SimNode, command: Regrow, asked_s: float) -> float:
        """When the donor's share is there: mixed ahead, or on request in twice the time."""
        ahead, at = self.ahead.get((donor, command.stage), (None, 0.0))
        if ahead is None or ahead.sources != command.sources:
            return 2 * asked_s if len(command.sources) > 1 else asked_s
        self.num_used += 1
        return at - self._world.now

    def _holder(self, node: SimNode, stage: int, state_id: str) -> SimNode | None:
        """Somebody with that state; the node itself may be one."""
        held = [n for n in self._whole(node, stage) if n.seats[stage].state_id == state_id]
        return self._world.rng.choice(held) if held else None

    def _whole(self, node: SimNode, stage: int) -> list[SimNode]:
        """Those of them that are done with learning it."""
        return [n for n in self._reached(node, stage) if (n, stage) not in self._learning]

    def _reached(self, node: SimNode, stage: int) -> list[SimNode]:
        """Nodes that have something of the stage, run and answer this one, itself included."""
        return [n for n in self._world.running(stage) if self._answers(n, node)]

    def _answers(self, donor: SimNode, node: SimNode) -> bool:
        parted = self._world.network.parted((donor.peer, node.peer), self._world.now)
        return not (donor.dead or donor.frozen or parted)

    def _mixed(self, node: SimNode, command: Regrow, round_: int, donors: list[SimNode], seconds: float) -> None:
        stage = command.stage
        if self._learning.get((node, stage)) != round_:
            return
        if not all(self._answers(donor, node) for donor in donors):
            self.num_failed += 1
            self._mix(node, command, round_)
            return
        parts = [[s.state_id, s.coefficient, self._world.watch.digest_of(s.stage, s.state_id)] for s in command.sources]
        digest = hash_of(["mix", stage, command.generation, parts])
        seat = SimSeat(stage, command.state_id, digest, 0, command.lr_factor, command.generation)
        node.seats[stage] = seat
        self.num_mixed += 1
        self._world.watch.regrown(node, seat, command)
        peers = tuple(n.peer for n in donors)
        event = Learned(
            stage,
            seat.state_id,
            command.step,
            seat.digest,
            0,
            command.lr_factor,
            command.generation,
            peers,
            self.state_bytes,
            seconds,
        )
        self._world.handle(node, event)

    def stop(self, node: SimNode, command: StopLearning) -> None:
        """The seat takes part in steps now."""
        self._learning.pop((node, command.stage), None)

    def drop(self, node: SimNode, stage: int) -> None:
        """The seat is gone."""
        self._learning.pop((node, stage), None)

    def forget(self, node: SimNode) -> None:
        """It is gone."""
        for book in (self._learning, self.ahead):
            for key in [key for key in book if key[0] is node]:
                del book[key]

    def keep(self, _node: SimNode, _command: KeepGradients) -> None:
        """Donors have what is asked for."""

    def _copy(self, node: SimNode, stage: int, round_: int, have: str) -> None:
        """Begin to copy the newest state that somebody holds, if it is another one than `have`."""
        if self._learning.get((node, stage)) != round_:
            return
        world = self._world
        donors = [n for n in self._donors(node, stage) if n.seats[stage].state_id != have]
        if not donors:
            world.post(world.now + self.look_again_s, node, self._copy, node, stage, round_, have)
            return
        donor = world.rng.choice(donors)
        seat = replace(donor.seats[stage], retained=set(), gradients={}, sums={}, discarded=(0, 0))
        seconds = self._seconds(node, donor, first=not have)
        if not have or world.rng.random() < 0.3:
            world.handle(node, LearningGoesOn(stage, 0, self.state_bytes, seconds))
        world.post(world.now + seconds, node, self._copied, node, donor, seat, round_, have, seconds)

    def _donors(self, node: SimNode, stage: int) -> list[SimNode]:
        others = [n for n in self._reached(node, stage) if n is not node and (n, stage) not in self._learning]
        roster = getattr(node.state, "chain", None)  # what a test puts in its place may have none
        return [n for n in others if roster is None or roster.member_of(n.peer) == n.spec.member]

    def _seconds(self, node: SimNode, donor: SimNode, first: bool) -> float:
        network = self._world.network
        size = self.state_bytes if first else self.state_bytes / STATE_VECTORS
        seconds = ROUND_TRIPS * network.latency(node.peer, donor.peer) + size / min(
            network.rate(node.peer), network.rate(donor.peer)
        )
        return seconds * (0.9 + 0.2 * self._world.rng.random())

    def _copied(self, node: SimNode, donor: SimNode, seat: SimSeat, round_: int, have: str, seconds: float) -> None:
        stage = seat.stage
        if self._learning.get((node, stage)) != round_:
            return
        if not self._answers(donor, node):
            self.num_failed += 1
            self._copy(node, stage, round_, have)
            return
        self.num_copied += 1
        node.seats[stage] = seat
        self._world.watch.learned(node, seat)
        step = self._world.watch.step_of(seat.state_id, stage)
        self._world.handle(
            node,
            Learned(
                stage,
                seat.state_id,
                step,
                seat.digest,
                seat.age,
                seat.lr_factor,
                seat.generation,
                (donor.peer,),
                self.state_bytes,
                seconds,
            ),
        )
        if not node.dead:
            self._world.post(self._world.now, node, self._copy, node, stage, round_, seat.state_id)

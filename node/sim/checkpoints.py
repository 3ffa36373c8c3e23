"""Simulated saving: one store that all nodes reach, where a stage is whole or not at all, and sometimes damaged afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace

from node.sim.machine import SimSeat, require
from node.sim.nodes import SimNode
from node.sim.surroundings import Surroundings
from protocol.commands import Restore, Save, Survey
from protocol.events import Learned, RestoreFailed, Saved, SavedState, Surveyed
from protocol.ids import StateId, hash_of

SAVE_S = (0.02, 1.5)
READ_S = (0.05, 0.6)
LOOK_S = (0.01, 0.3)
NUM_BYTES = 12 << 20


@dataclass(slots=True)
class Troubles:
    """What may go wrong: shares of all saves, and a time of the world until which nobody can look what there is."""

    fails: float = 0.0
    damages: float = 0.0
    closed_until: float = 0.0


class Checkpoints:
    """Carries out Save, Survey and Restore: late, and never for a node that died meanwhile."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self.troubles = Troubles()
        self.saved: dict[tuple[int, StateId], SimSeat] = {}
        self.damaged: set[tuple[int, StateId]] = set()
        self.num_failed = self.num_restored = self.num_damaged = self.num_closed = 0
        self._restoring: dict[tuple[SimNode, int], int] = {}
        self._round = 0

    def save(self, node: SimNode, command: Save) -> None:
        """What is saved is what the stage is now, however long that takes."""
        seat, rng = node.seats[command.stage], self._world.rng
        told = (command.state_id, command.digest, command.optimizer_age, command.lr_factor)
        require((seat.state_id, seat.digest, seat.age, seat.lr_factor) == told, f"{node!r} is to do {command} and holds {seat}")
        copy = replace(seat, retained=set(), gradients={}, sums={}, discarded=(0, 0))
        seconds = rng.uniform(*SAVE_S)
        self._world.post(self._world.now + seconds, node, self._saved, node, command, copy, seconds)

    def _saved(self, node: SimNode, command: Save, copy: SimSeat, seconds: float) -> None:
        world, key = self._world, (command.stage, command.state_id)
        trouble = "no space left" if world.rng.random() < self.troubles.fails else ""
        self.num_failed += bool(trouble)
        if not trouble:
            self.saved[key] = copy
            if world.rng.random() < self.troubles.damages:
                self.damaged.add(key)
        world.handle(node, Saved(command.stage, command.step, 0 if trouble else NUM_BYTES, seconds, trouble))

    def survey(self, node: SimNode, command: Survey) -> None:
        """Damage is not seen."""
        self._world.post(self._world.now + self._world.rng.uniform(*LOOK_S), node, self._surveyed, node, command)

    def _surveyed(self, node: SimNode, command: Survey) -> None:
        if self._world.now < self.troubles.closed_until:
            self.num_closed += 1
            self._world.handle(node, Surveyed(command.number, (), "it cannot be read"))
            return
        found = tuple(SavedState(stage, state_id) for stage, state_id in sorted(self.saved))
        self._world.handle(node, Surveyed(command.number, found))

    def restore(self, node: SimNode, command: Restore) -> None:
        """A seat without state, to be read back, or (step 0) made from the seed."""
        self._round += 1
        self._restoring[node, command.stage] = self._round
        seconds = self._world.rng.uniform(*READ_S)
        self._world.post(self._world.now + seconds, node, self._restored, node, command, self._round, seconds)

    def end(self, node: SimNode, stage: int) -> None:
        """The seat is gone, or takes part."""
        self._restoring.pop((node, stage), None)

    def _restored(self, node: SimNode, command: Restore, round_: int, seconds: float) -> None:
        stage, key = command.stage, (command.stage, command.source)
        if self._restoring.get((node, stage)) != round_:
            return
        if command.step and (key in self.damaged or key not in self.saved):
            self.num_damaged += 1
            self._world.handle(node, RestoreFailed(stage, command.source, "its bytes are others"))
            return
        run_id = self._world.manifest.run_id
        seat = self.saved[key] if command.step else SimSeat(stage, command.source, hash_of(["weights", run_id, stage]))
        seat = replace(seat, state_id=command.state_id, generation=command.generation, retained=set(), gradients={}, sums={})
        node.seats[stage] = seat
        self.num_restored += 1
        self._world.watch.restored(node, seat, command)
        facts = (command.step, seat.digest, seat.age, seat.lr_factor, seat.generation)
        self._world.handle(node, Learned(stage, seat.state_id, *facts, (), NUM_BYTES, seconds))

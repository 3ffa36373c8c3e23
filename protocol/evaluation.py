"""A node's part of an evaluation: held-out microbatches go forward along their routes, nothing is retained."""

from __future__ import annotations

from protocol.commands import Command, Compute, Release, SendMessage, SendPayload, Work
from protocol.events import ComputeDone
from protocol.ids import PeerId
from protocol.messages import Evaluated, OpenEvaluation, PipeHeader, Route
from protocol.seat import Incoming


class Evaluation:
    """One evaluation, named by the parent record. `asked` is set where this node admits microbatches (stage 0)."""

    def __init__(self, parent: str, step: int, me: PeerId, max_in_flight: int) -> None:
        self.parent = parent
        self.step = step
        self._me = me
        self._max_in_flight = max_in_flight
        self._asked: OpenEvaluation | None = None
        self._queue: list[Route] = []
        self._in_flight = 0
        self._seen: set[tuple[int, int]] = set()
        self._computing: dict[tuple[str, int, int], Incoming] = {}

    def open(self, asked: OpenEvaluation) -> list[Command]:
        """Start to admit; a repeated order is ignored."""
        if self._asked is not None:
            return []
        self._asked, self._queue = asked, list(asked.routes)
        return self._admit()

    def _admit(self) -> list[Command]:
        out: list[Command] = []
        while self._queue and self._in_flight < self._max_in_flight:
            assert self._asked, "only a node that was asked admits"
            route, asked = self._queue.pop(0), self._asked
            self._in_flight += 1
            header = PipeHeader(asked.ballot, asked.step, 0, asked.parent, "evaluate", 0, route)
            out += self._start("embed", Incoming(header, 0, self._me))
        return out

    def take(self, incoming: Incoming) -> list[Command]:
        """A hidden state of this evaluation for a stage that this node holds."""
        header = incoming.header
        key = (header.route.microbatch, header.hop)
        if key in self._seen:
            return [Release(incoming.handle)]
        self._seen.add(key)
        last = header.hop == len(header.route.hops) - 1
        return self._start("head" if last else "forward", incoming)

    def _start(self, op: str, incoming: Incoming) -> list[Command]:
        header = incoming.header
        stage = header.route.hops[header.hop].stage
        self._computing[op, stage, header.route.microbatch] = incoming
        work = Work(op, stage, header.step, 0, header.route.microbatch, evaluate=True)  # type: ignore[arg-type]
        return [Compute(work, incoming.handle, incoming.peer)]

    def computed(self, done: ComputeDone) -> list[Command]:
        """Send the hidden state on, or the loss to the coordinator."""
        incoming = self._computing.pop((done.work.op, done.work.stage, done.work.microbatch), None)
        if incoming is None:
            return [Release(done.handle)] if done.handle else []
        header = incoming.header
        out: list[Command] = [Release(incoming.handle)] if incoming.handle else []
        if done.handle:
            to = header.route.hops[header.hop + 1].peer
            onward = PipeHeader(header.ballot, header.step, 0, header.parent, "evaluate", header.hop + 1, header.route)
            return [*out, SendPayload(to, onward, done.handle), Release(done.handle)]
        self._in_flight -= 1
        result = Evaluated(header.ballot, header.parent, header.route.microbatch, done.loss_sum, done.tokens)
        return [*out, SendMessage(header.ballot.peer, result), *self._admit()]

    def end(self) -> list[Command]:
        """Release what is still held."""
        held, self._computing, self._queue = list(self._computing.values()), {}, []
        return [Release(i.handle) for i in held if i.handle]

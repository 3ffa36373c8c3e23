"""A manifest and a decision object for tests of the protocol core: no clock, no wire, no tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from protocol.assignment import make_plan
from protocol.commands import Command, Note, Release, Say, SendMessage
from protocol.events import ComputeDone, Event, LeasesSeen, MessageReceived, PayloadArrived, SeatCreated
from protocol.ids import Ballot, Member, PeerId
from protocol.manifest import Manifest, from_mapping
from protocol.messages import Contact, Decide, Message, OpenStep, PipeHeader, Route, SeatWork
from protocol.node_state import NodeConfig, NodeState
from protocol.records import Record, Roster, Seating

LEAD = Member("lead", 1)
BALLOT = Ballot(1, LEAD.peer)


def a_manifest(num_block_stages: int = 2, microbatches: int = 4, policy: str = "none", **sections: Any) -> Manifest:
    """A small run; keyword arguments replace whole sections."""
    shard = {"digest": "0" * 64, "num_bytes": 1 << 20, "num_tokens": 1 << 19}
    data: dict[str, Any] = {
        "name": "core",
        "model": {
            "vocab_size": 16,
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": num_block_stages,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "max_position_embeddings": 8,
        },
        "num_block_stages": num_block_stages,
        "data": {"train": [shard], "validation": [shard]},
        "batch": {"microbatch_samples": 1, "global_samples": microbatches, "context_tokens": 8},
        "optimizer": {"learning_rate": 0.1},
        "max_steps": 10,
        "recovery": {"policy": policy, "embedding_copies": 2},
    }
    return from_mapping(data | sections)


def holders(manifest: Manifest, replicas: int = 1) -> list[Seating]:
    """Active seats of every stage: `lead` and p0.1, p0.2 ... at stage 0, pS.0, pS.1 ... at the others."""
    names = [[f"p{s}.{r}" for r in range(replicas)] for s in range(manifest.num_stages)]
    names[0][0] = LEAD.peer
    return [Seating(s, Member(name, 1), "active") for s, row in enumerate(names) for name in row]


class Core:
    """One NodeState that follows `lead`, and the balance of the handles that it was given."""

    def __init__(self, manifest: Manifest, peer: PeerId, seatings: Iterable[Seating] = (), founder: bool = False) -> None:
        self.manifest = manifest
        self.state = NodeState(NodeConfig(manifest, Member(peer, 1), peer, f"{peer}:1", founder=founder))
        self.held: Counter[int] = Counter()
        self.now = 100.0
        self._handles = 0
        if not founder:
            self.do(LeasesSeen(Contact(LEAD.peer, "lead:1"), ()))
        seatings = tuple(seatings)
        if seatings:
            self.decide(Roster(self.state.chain.head, 0, seatings, (), (LEAD,)))
            for stage in list(self.state.bench.seats):
                self.do(SeatCreated(stage, "digest", 8))

    def do(self, event: Event, after_s: float = 0.0) -> list[Command]:
        """Let `after_s` pass and handle the event; books what it gives and what comes back."""
        self.now += after_s
        if isinstance(event, PayloadArrived | ComputeDone) and event.handle:
            self.held[event.handle] += 1
        commands = self.state.handle(event, self.now)
        for command in commands:
            if isinstance(command, Release):
                assert self.held[command.handle] > 0, f"handle {command.handle} is released once too often"
                self.held[command.handle] -= 1
        return commands

    @property
    def num_held(self) -> int:
        """Handles that were given and not released."""
        return sum(self.held.values())

    def handle(self) -> int:
        """A new handle."""
        self._handles += 1
        return self._handles

    def tell(self, message: Message, peer: PeerId = LEAD.peer, incarnation: int = 1, after_s: float = 0.0) -> list[Command]:
        """A peer, usually the coordinator, says something."""
        return self.do(MessageReceived(peer, incarnation, message), after_s)

    def decide(self, record: Record) -> list[Command]:
        """The coordinator decided a record."""
        return self.tell(Decide(BALLOT, record, ()))

    def open(self, attempt: int = 1, ballot: Ballot = BALLOT) -> list[Command]:
        """The coordinator opens the next step for this node as its roster says."""
        chain, me = self.state.chain, self.state.config.member
        active = [[s.member.peer for s in chain.active(stage)] for stage in range(self.manifest.num_stages)]
        plan = make_plan(self.manifest.batch.num_microbatches, active, self.manifest.swapped)
        work = tuple(
            SeatWork(s.stage, s.role, s.generation, plan.hands.get((s.stage, me.peer), ()) if s.role == "active" else ())
            for s in chain.seatings
            if s.member == me and s.role != "learner"
        )
        routes = tuple(r for r in plan.routes if plan.owner[0][r.microbatch] == me.peer)
        return self.tell(OpenStep(ballot, chain.step + 1, attempt, chain.head, work, routes, (), ()), ballot.peer)

    def route(self, microbatch: int) -> Route:
        """The assigned way of a microbatch."""
        chain = self.state.chain
        active = [[s.member.peer for s in chain.active(stage)] for stage in range(self.manifest.num_stages)]
        return make_plan(self.manifest.batch.num_microbatches, active, self.manifest.swapped).routes[microbatch]

    def header(self, kind: str, microbatch: int, hop: int, **changes: Any) -> PipeHeader:
        """Header of a payload of the next step, first attempt."""
        chain = self.state.chain
        fields: dict[str, Any] = {
            "ballot": BALLOT,
            "step": chain.step + (kind != "evaluate"),
            "attempt": int(kind != "evaluate"),
            "parent": chain.head,
            "kind": kind,
            "hop": hop,
            "route": self.route(microbatch),
        }
        return PipeHeader(**(fields | changes))

    def arrive(self, header: PipeHeader, peer: PeerId | None = None) -> list[Command]:
        """A payload comes, by default from the hop before."""
        if peer is None:
            peer = header.route.hops[header.hop + (1 if header.kind == "backward" else -1)].peer
        return self.do(PayloadArrived(peer, header, self.handle(), 8))


def sent(commands: Iterable[Command], kind: type, to: PeerId | None = None) -> list[Any]:
    """Messages of a kind among the commands."""
    wanted = [c for c in commands if isinstance(c, SendMessage) and isinstance(c.message, kind)]
    return [c.message for c in wanted if to in (None, c.peer)]


def of(commands: Iterable[Command], kind: type) -> list[Any]:
    """Commands of a kind."""
    return [c for c in commands if isinstance(c, kind)]


def notes(commands: Iterable[Command], type_: str) -> list[dict[str, Any]]:
    """Fields of the notes of a type."""
    return [c.fields for c in commands if isinstance(c, Note) and c.type == type_]


def says(commands: Iterable[Command]) -> list[str]:
    """Sentences for people."""
    return [c.sentence for c in commands if isinstance(c, Say)]

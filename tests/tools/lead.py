"""The founder of a small swarm whose other members are played by the test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from protocol.commands import Command, Compute, Reduce, Work
from protocol.events import ComputeDone, Reduced, SeatCreated, Tick
from protocol.ids import Member, bitmap
from protocol.messages import (
    Heartbeat,
    Held,
    Propose,
    ReducedReport,
    ReduceReady,
    Wish,
)
from protocol.records import record_id
from tests.tools.core import BALLOT, LEAD, Core, a_manifest, of, sent


class Lead(Core):
    """The founder, holding stage 0 with other members played by the test; all stages are seated and step 1 is open."""

    def __init__(self, others: tuple[str, ...] = ("a", "b"), **options: Any) -> None:
        super().__init__(a_manifest(**options), LEAD.peer, founder=True)
        self.all: list[Command] = []
        stages = [0, *(1 + i % self.manifest.num_block_stages for i in range(len(others)))]
        for peer, stage in reversed(list(zip([LEAD.peer, *others], stages, strict=True))):
            wish = Wish(Member(peer, 1), stage, peer, f"{peer}:1", 0)
            self.tell(wish, peer)
        self.do(SeatCreated(0, "d", 8))
        self.beats()

    @property
    def coordinator(self) -> Any:
        return self.state.coordinator

    def beats(self, after_s: float = 0.0, silent: tuple[str, ...] = (), head: str = "") -> list[Command]:
        """A tick, and a heartbeat of every other member (who knows the newest head and has the step open)."""
        out = self.do(Tick(), after_s)
        ledger = self.coordinator.ledger
        step, attempt = (ledger.step, ledger.attempt) if ledger else (0, 0)
        for member in self.state.chain.members():
            if member != LEAD and member.peer not in silent:
                beat = Heartbeat(1, BALLOT, head or self.state.chain.head, step, attempt)
                out += self.tell(beat, member.peer)
        return out

    def pass_time(self, seconds: float, silent: tuple[str, ...] = ()) -> list[Command]:
        out: list[Command] = []
        for _ in range(int(seconds * 2)):
            out += self.beats(0.5, silent)
        return out

    def ready(self, member: str, stage_: int, **changes: Any) -> list[Command]:
        owned = bitmap(self.coordinator.ledger.plan.hands[stage_, member])
        ledger = self.coordinator.ledger
        fields = {
            "ballot": BALLOT,
            "step": ledger.step,
            "attempt": ledger.attempt,
            "stage": stage_,
            "microbatches": owned,
            "loss_sum": 0.0,
            "tokens": 0,
            "seconds_per_microbatch": 0.1,
        }
        return self.tell(ReduceReady(**(fields | changes)), member)

    def reduced(self, member: str, stage_: int, **changes: Any) -> list[Command]:
        ledger = self.coordinator.ledger
        fields = {
            "ballot": BALLOT,
            "step": ledger.step,
            "attempt": ledger.attempt,
            "stage": stage_,
            "digest": f"sum{stage_}",
            "squared_norm": 1.0,
        }
        return self.tell(ReducedReport(**(fields | changes)), member)

    def own_stage(self) -> list[Command]:
        """Stage 0 computes here; the head's gradient comes back from the others at once."""
        out: list[Command] = []
        last = self.manifest.num_stages
        for microbatch in range(self.manifest.batch.num_microbatches):
            for header in (self.header("forward", microbatch, last), self.header("backward", microbatch, 0)):
                attempt = self.coordinator.ledger.attempt
                for compute in of(self.arrive(replace(header, attempt=attempt)), Compute):
                    tokens = self.manifest.batch.tokens_per_microbatch if compute.work.op == "head" else 0
                    handle = self.handle() if compute.work.op == "head" else 0
                    out += self.do(ComputeDone(compute.work, handle, 8, 2.0 if tokens else 0.0, tokens, 0.1))
        for reduce in of(out, Reduce):
            out += self.do(Reduced(0, reduce.step, reduce.attempt, "sum0", 1.0, 0.1))
        return out


def lead(**options: Any) -> Lead:
    """Embeds are done, so that payloads may come back."""
    c = Lead(**options)
    assert c.coordinator.ledger, "the first step is open"
    return c


def embed_all(c: Lead) -> None:
    for microbatch in range(c.manifest.batch.num_microbatches):
        attempt = c.coordinator.ledger.attempt
        c.do(ComputeDone(Work("embed", 0, c.coordinator.ledger.step, attempt, microbatch), c.handle(), 8, 0.0, 0, 0.1))


def whole_step(c: Lead) -> list[Command]:
    """Everybody has the sum; the votes are still to come."""
    embed_all(c)
    out = c.own_stage()
    for stage, member in ((1, "a"), (2, "b")):
        out += c.ready(member, stage)
    for stage, member in ((1, "a"), (2, "b")):
        out += c.reduced(member, stage)
    return out


def votes(c: Lead, commands: list[Command]) -> list[Command]:
    record = sent(commands, Propose)[0].record
    return c.tell(Held(BALLOT, record_id(record)), "a")

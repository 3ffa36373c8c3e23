"""A node's own conduct: what it repeats, when it goes, and that nothing that peers send makes it raise or leak."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from protocol.commands import Apply, Command, Compute, CreateSeat, DropSeat, Exit, Learn, Reduce
from protocol.counted import contributors_of
from protocol.events import (
    Applied,
    CommandFailed,
    ComputeDone,
    Learned,
    LearningGoesOn,
    LeasesSeen,
    LeaveAsked,
    MessageReceived,
    PayloadArrived,
    Reduced,
    SeatCreated,
    Tick,
)
from protocol.ids import NO_BALLOT, Ballot, Member
from protocol.messages import (
    Contact,
    Decide,
    Goodbye,
    Held,
    Hop,
    Message,
    Order,
    PipeHeader,
    Propose,
    Route,
    Stalled,
    Standing,
    VoidStep,
    Wish,
    Yield,
)
from protocol.records import Commit, Roster, Seating, Shadow, Share, StageResult
from tests.tools.core import BALLOT, LEAD, Core, a_manifest, holders, notes, of, says, sent


def core(stage: int = 1, **options: Any) -> Core:
    manifest = a_manifest(**options)
    return Core(manifest, f"p{stage}.0" if stage else "p0.1", holders(manifest, replicas=2))


def ticks(c: Core, seconds: float, heard: tuple[str, ...] = ("lead",)) -> list[Command]:
    out: list[Command] = []
    for _ in range(int(seconds * 4)):
        out += c.do(Tick(dict.fromkeys(heard, 0.0)), 0.25)
    return out


# ---- what is repeated ----


def test_a_stall_is_repeated_until_the_step_is_voided() -> None:
    c = core()
    c.open()
    out = c.do(CommandFailed(1, 1, 1, -1, "p1.1", "its part did not come"))
    assert [(m.peer, m.reason) for m in sent(out, Stalled)] == [("p1.1", "its part did not come")]
    again = ticks(c, 3 * c.manifest.timing.lapse_s)
    assert {m.reason for m in sent(again, Stalled)} == {"its part did not come"}
    assert 2 <= len(sent(again, Stalled)) <= 4
    c.tell(VoidStep(BALLOT, 1, 1, "x"))
    assert not sent(ticks(c, 10), Stalled)


def test_a_stale_failure_stalls_nothing() -> None:
    c = core()
    c.open(attempt=2)
    assert not sent(c.do(CommandFailed(1, 1, 1, -1, "p1.1", "old")), Stalled)


def test_a_new_roster_ends_a_step_that_was_opened_before_it() -> None:
    c = core()
    c.open()
    chain = c.state.chain
    lost = next(s for s in chain.seatings if s.member.peer == "p2.1")
    c.decide(Roster(chain.head, 0, (), (lost,), (LEAD,)))
    assert c.state.bench.open is None, "it can never be committed: its parent is not the head"


def test_a_member_without_its_seat_says_so_instead_of_blocking_every_step() -> None:
    c = core()
    chain = c.state.chain
    results = tuple(StageResult(s, "d", 1.0) for s in range(3))
    out = c.decide(Commit(chain.head, 1, 1, results, 1.0, c.manifest.batch.tokens_per_step))
    assert notes(out, "left")
    assert not c.state.bench.seats
    goodbyes = sent(ticks(c, 1), Goodbye, "lead")
    assert goodbyes
    assert goodbyes[0].member == c.state.config.member


def test_who_is_off_the_roster_wishes() -> None:
    c = core()
    chain = c.state.chain
    mine = next(s for s in chain.seatings if s.member.peer == "p1.0")
    c.decide(Roster(chain.head, 0, (), (mine,), (LEAD,)))
    out = ticks(c, 1)
    assert sent(out, Wish, "lead")
    assert not sent(out, Goodbye)


def test_a_state_is_kept_by_who_is_off_the_roster_and_not_by_a_member_that_gives_up_a_seat() -> None:
    manifest = a_manifest()
    second = Seating(2, Member("p1.0", 1), "active")
    c = Core(manifest, "p1.0", (*holders(manifest, replicas=2), second))
    chain = c.state.chain
    out = c.decide(Roster(chain.head, 0, (), (second,), (LEAD,)))
    assert [command.stage for command in of(out, DropSeat)] == [2]
    first = next(s for s in chain.seatings if s.member == second.member)
    assert not of(c.decide(Roster(chain.head, 0, (), (first,), (LEAD,))), DropSeat)
    [wish, *_] = sent(ticks(c, 1), Wish, "lead")
    assert [kept.stage for kept in wish.kept] == [1]


def test_a_coordinator_that_takes_over_is_told_once_what_room_a_member_has() -> None:
    c = core()
    assert sent(ticks(c, 1), Wish, "lead")
    assert not sent(ticks(c, 3), Wish)
    c.tell(Standing(Ballot(2, "p2.0"), "training", "training", 0, -1, 0.0), "p2.0")
    assert [wish.member.peer for wish in sent(ticks(c, 3), Wish, "p2.0")] == ["p1.0"]


# ---- the end ----


def finished(c: Core, step: int = 0) -> list[Command]:
    return c.tell(Standing(BALLOT, "finished", "finished", step, -1, 0.0))


def test_a_finished_node_lingers_and_goes() -> None:
    c = core()
    finished(c)
    linger = c.manifest.timing.linger_s
    assert not of(ticks(c, linger - 0.5), Exit)
    out = ticks(c, 1)
    assert [e.code for e in of(out, Exit)] == [0]
    assert isinstance(out[-1], Exit), "nothing is asked for after the end"
    assert c.do(Tick()) == []


def test_a_node_that_is_behind_waits_longer_but_not_for_ever() -> None:
    c = core()
    finished(c, step=3)
    timing = c.manifest.timing
    assert not of(ticks(c, timing.linger_s + 3 * timing.lapse_s), Exit)
    assert of(ticks(c, 2 * timing.lapse_s), Exit)


def test_after_the_last_step_nobody_waits_for_a_coordinator_that_has_gone() -> None:
    c = core(max_steps=1)
    chain = c.state.chain
    results = tuple(StageResult(s, "d", 1.0) for s in range(3))
    c.decide(Commit(chain.head, 1, 1, results, 1.0, c.manifest.batch.tokens_per_step))
    c.tell(Goodbye(LEAD, "done"))
    out = ticks(c, c.manifest.timing.linger_s + 2, heard=())
    assert [e.code for e in of(out, Exit)] == [0]
    assert any("the coordinator has gone already" in s for s in says(out))


def test_before_the_last_step_a_node_waits_for_its_coordinator() -> None:
    c = core()
    c.tell(Goodbye(LEAD, "bye"))
    out = ticks(c, 60, heard=())
    assert not of(out, Exit)
    assert "is not heard" in c.state.outlook.sentence


def test_leaving_at_once_says_goodbye_and_returns_all_payloads() -> None:
    c = core()
    c.open()
    c.arrive(c.header("forward", 0, 1))
    c.arrive(replace(c.header("forward", 2, 1), attempt=2))
    assert c.num_held == 2
    c.do(LeaveAsked("test"))
    out = c.do(LeaveAsked("now"))
    assert sent(out, Goodbye, "lead")
    assert of(out, Exit)
    assert c.num_held == 0
    c.do(PayloadArrived("lead", c.header("forward", 0, 1), c.handle(), 8))
    assert c.num_held == 0


# ---- whom it follows ----


def test_a_newcomer_whose_coordinator_is_dead_takes_the_next_one_from_the_directory() -> None:
    c = Core(a_manifest(), "new")
    other = LeasesSeen(Contact("other", "other:1"), ())
    c.do(other)
    assert c.state.leader.peer == "lead", "while it may live"
    ticks(c, 2 * c.manifest.timing.lapse_s, heard=())
    c.do(other)
    assert c.state.leader.peer == "other"
    c.tell(Standing(Ballot(1, "other"), "training", "training", 0, -1, 0.0), peer="other")
    assert c.state.outlook.sentence == "training"


def test_a_member_keeps_its_coordinator() -> None:
    c = core()
    ticks(c, 60, heard=())
    c.do(LeasesSeen(Contact("other", "other:1"), ()))
    assert c.state.leader.peer == "lead"


def proposal(c: Core, **shares: str) -> Propose:
    chain = c.state.chain
    every = f"{(1 << c.manifest.batch.num_microbatches) - 1:x}"
    rows = [Share(s.stage, s.member, shares.get(s.member.peer.replace(".", "_"), every)) for s in chain.seatings]
    rows = [row for row in rows if row.microbatches]
    results = tuple(StageResult(s, "d", 1.0) for s in range(3))
    commit = Commit(
        chain.head, 1, 1, results, 1.0, c.manifest.batch.tokens_per_step, contributors_of(tuple(rows), 1, c.manifest)
    )
    return Propose(BALLOT, commit, tuple(rows))


def single() -> Core:
    manifest = a_manifest()
    return Core(manifest, "p1.0", holders(manifest))


def test_a_voter_holds_what_covers_each_microbatch_once() -> None:
    c = single()
    assert sent(c.tell(proposal(c)), Held)


@pytest.mark.parametrize("share", ["7", "0", "1f"])
def test_a_voter_refuses_what_does_not(share: str) -> None:
    c = single()
    out = c.tell(proposal(c, p2_0=share))
    assert not sent(out, Held)
    assert notes(out, "refused")


def test_a_voter_refuses_shares_that_the_record_does_not_name() -> None:
    c = single()
    good = proposal(c)
    swapped = replace(good.shares[0], microbatches="e"), *good.shares[1:]
    assert not sent(c.tell(Propose(BALLOT, good.record, swapped)), Held)


# ---- fuzz: any well-formed message, in any order, from anybody ----


NUM_SWARMS = 20
PEERS = ["lead", "p0.1", "p1.0", "p1.1", "p2.0", "p2.1", "stranger", ""]
NUMBERS = [-1, 0, 1, 2, 3, 4, 5, 77, 1 << 31, (1 << 63) - 1]
TEXTS = ["", "x", "f" * 32, "lead", "peer with spaces", "ü" * 100]
BITMAPS = ["0", "1", "f", "a", "5", "f" * 1024]


hints_of = cache(get_type_hints)


class Fuzz:
    """Draws values for the fields of messages; half of the time those that fit the swarm as it stands."""

    def __init__(self, rng: random.Random, c: Core) -> None:
        self.rng, self.c = rng, c

    def of(self, hint: Any, name: str = "") -> Any:
        rng, chain = self.rng, self.c.state.chain
        if rng.random() < (0.97 if name == "ballot" else 0.7):
            now = (self.c.state.bench.open or self.c.state).ballot
            likely = {"parent": chain.head, "head": chain.head, "ballot": now, "forked": NO_BALLOT}
            likely |= {"attempt": 1, "microbatches": "f"}
            if name in ("step", "attempt"):
                return chain.step + rng.choice((0, 1, 1, 2)) if name == "step" else rng.choice((1, 1, 2))
            if name in likely and (name != "microbatches" or hint is str):
                return likely[name]
        if get_origin(hint) is Literal:
            return rng.choice(get_args(hint))
        if get_origin(hint) is tuple:
            return self.items(get_args(hint)[0], name)
        if Order in get_args(hint):
            return None  # at the edge no order passes that the organiser did not sign
        if Shadow in get_args(hint):
            return rng.choice((None, self.make(Shadow)))
        if type(None) in get_args(hint):
            return rng.choice((None, (), (0,), (1, 2)))
        if get_args(hint):
            return self.of(rng.choice(get_args(hint)))
        return self.scalar(hint, name)

    def scalar(self, hint: Any, name: str) -> Any:
        rng = self.rng
        if hint is bool:
            return rng.random() < 0.5
        if hint is int:
            return rng.choice(NUMBERS)
        if hint is float:
            return rng.choice((0.0, 1.0, -1.0, 1e308, 1e-308, float("inf"), float("nan"), 32.0))
        if hint is str:
            return rng.choice(PEERS if "peer" in name else BITMAPS if name == "microbatches" else TEXTS)
        if hint is Route and rng.random() < 0.7:
            return self.c.route(rng.randrange(4)) if is_whole(self.c) else Route(0, ())
        if hint is Member and rng.random() < 0.7:
            return Member(rng.choice(PEERS), 1)
        return self.make(hint)

    def items(self, hint: Any, name: str) -> tuple[Any, ...]:
        if hint is int:
            return self.rng.choice(((), (0, 1, 2, 3), (0,), (1, 3), (0, 0), (99,), (-1,)))
        if hint is Hop and self.rng.random() < 0.5:
            return tuple(Hop(s, self.rng.choice(PEERS)) for s in (0, 1, 2, 0))
        if hint is StageResult and self.rng.random() < 0.7:
            return tuple(replace(self.make(StageResult), stage=s) for s in range(3))
        return tuple(self.of(hint, name) for _ in range(self.rng.randrange(4)))

    def make(self, kind: type) -> Any:
        hints = hints_of(kind)
        return kind(**{f.name: self.of(hints[f.name], f.name) for f in fields(kind)})


def answers(rng: random.Random, c: Core, commands: list[Command]) -> list[Any]:
    """Outcomes of the commands: some twice, some never, some failures."""
    out: list[Any] = []
    for x in commands:
        if isinstance(x, Compute):
            ends = x.work.op == "embed_backward" or (x.work.op == "head" and x.work.evaluate)
            handle = 0 if ends else c.handle()
            done = ComputeDone(x.work, handle, 8, rng.choice((1.0, float("inf"))), 8 * (x.work.op == "head"), 0.1)
            out.append(rng.choice((done, done, CommandFailed(x.work.stage, x.work.step, x.work.attempt, 0, "", "x"))))
            if rng.random() < 0.1:
                out.append(replace(done, handle=0))
        elif isinstance(x, Reduce):
            out.append(Reduced(x.stage, x.step, x.attempt, "d", rng.choice((1.0, 1.0, float("nan"))), 0.1))
        elif isinstance(x, CreateSeat):
            out.append(SeatCreated(x.stage, "d", 8))
        elif isinstance(x, Learn):
            state = rng.choice((c.state.chain.state_ids[x.stage], "older"))
            out.append(LearningGoesOn(x.stage, 1, 2, 1.0))
            out.append(Learned(x.stage, state, c.state.chain.step, "d", 1, 1.0, 0, ("lead",), 8, 0.1))
        elif isinstance(x, Apply):
            out.append(Applied(x.stage, x.step, x.state_id, "d", 1, 0.1))
    return out


def is_whole(c: Core) -> bool:
    """Has every stage an active replica?"""
    return not c.state.chain.empty_stages()


def a_ballot(c: Core) -> Ballot:
    """One that the node follows: the coordinator's, or a higher one of `lead` where another was promised meanwhile."""
    promised = c.state.acceptor.promised
    return c.state.ballot if promised <= c.state.ballot else Ballot(promised.term + 1, LEAD.peer)


def one_event(rng: random.Random, c: Core, fuzz: Fuzz, kinds: list[type]) -> list[Command]:
    roll = rng.random()
    if roll < 0.1:
        return c.do(Tick({p: rng.random() * 5 for p in rng.sample(PEERS, 3)}), rng.choice((0.0, 0.25, 0.25, 5.0)))
    if roll < 0.35 and is_whole(c):
        header = fuzz.make(PipeHeader)
        if rng.random() < 0.6:
            header = replace(header, route=c.route(rng.randrange(4)), hop=rng.randrange(4), ballot=c.state.ballot)
            if o := c.state.bench.open:
                header = replace(header, ballot=o.ballot, step=o.step, attempt=o.attempt, parent=o.parent)
        sender = rng.choice(PEERS)
        if rng.random() < 0.6 and header.route.hops:
            sender = header.route.hops[(header.hop + (1 if header.kind == "backward" else -1)) % len(header.route.hops)].peer
        return c.do(PayloadArrived(sender, header, c.handle(), 8))
    if roll < 0.45 and is_whole(c) and c.state.config.member in c.state.chain.members():
        return c.open(attempt=rng.randrange(1, 4), ballot=a_ballot(c))
    message: Message = fuzz.make(rng.choice(kinds))
    leading = isinstance(message, Standing | Decide)
    peer = rng.choice(PEERS[:-1])
    if leading and peer == "lead" and isinstance(message, Standing) and message.phase == "finished":
        peer = "stranger"
    if isinstance(message, Yield) and rng.random() < 0.9:
        peer = "stranger"  # else most nodes would soon have no seat
    return c.do(MessageReceived(peer, rng.choice((1, 1, 1, 0, 2)) if peer != "lead" else 1, message))


@pytest.mark.parametrize("peer", ["p1.0", "p0.1", "lead", "bystander"])
@pytest.mark.parametrize("policy", ["none", "checkfree", "shadow"])
def test_nothing_that_peers_send_makes_a_node_raise_or_leak(seed: int, peer: str, policy: str) -> None:
    kinds = [kind for kind in get_args(Message) if kind is not Order]
    done: set[str] = set()
    for round_ in range(NUM_SWARMS):
        rng = random.Random(f"{seed} {peer} {policy} {round_}")
        every = {"shadow_every": 4} if policy == "shadow" else {}
        rules = {"policy": policy, "embedding_copies": 2} | every
        manifest = a_manifest(recovery=rules, evaluation={"every_steps": 1, "num_microbatches": 4})
        c = Core(manifest, peer, founder=peer == "lead")
        todo: list[Any] = []
        if peer != "lead":
            todo += answers(rng, c, c.decide(Roster(c.state.chain.head, 0, tuple(holders(manifest, 2)), (), (LEAD,))))
        else:
            for s in holders(manifest, 2):
                commands = c.tell(Wish(s.member, s.stage, "n", "x:1", 0), s.member.peer)
                todo += answers(rng, c, commands)
        fuzz = Fuzz(rng, c)
        for _ in range(120):
            event = todo.pop(rng.randrange(len(todo))) if todo and rng.random() < 0.5 else None
            commands = c.do(event) if event else one_event(rng, c, fuzz, kinds)
            todo += answers(rng, c, commands)
            done |= {type(x).__name__ for x in commands}
        for event in todo:
            c.do(event)
        c.do(LeaveAsked("the end"))
        if not c.state._exiting:
            c.do(LeaveAsked("at once"))
        assert c.num_held == 0, f"round {round_}: {c.num_held} handles are left"
    expected = {"SendMessage", "Release", "Note"} | ({"Compute"} if peer != "bystander" else set())
    assert expected <= done, "the fuzz reaches nothing"

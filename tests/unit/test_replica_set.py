"""Who sums: each replica derives it from the roster, and is told whose each microbatch is."""

from __future__ import annotations

from dataclasses import replace

from protocol.commands import Introduce, Reduce, ReduceMember, Work
from protocol.events import ComputeDone
from protocol.ids import Member, bitmap
from protocol.messages import Contact, ReduceReady, Stalled, StartReduce
from protocol.records import Roster, Seating
from protocol.replica_set import owners_of, replicas, summands
from tests.tools.core import BALLOT, LEAD, Core, a_manifest, holders, notes, of, sent
from tests.tools.lead import Lead

OWNERS = (0, 1, 0, 1)
HERE, THERE, COPY = Member("p1.0", 1), Member("p1.1", 1), Member("p2.0", 1)


def ready() -> tuple[Core, StartReduce]:
    """p1.0 has accumulated its half of stage 1, and knows no addresses; the order to sum."""
    manifest = a_manifest()
    seatings = [*holders(manifest, 2), Seating(1, COPY, "passive"), Seating(1, Member("late", 1), "learner")]
    c = Core(manifest, HERE.peer, seatings)
    c.open()
    for microbatch in (0, 2):
        for kind in ("forward", "backward"):
            hop = next(at for at, hop in enumerate(c.route(microbatch).hops) if hop.peer == HERE.peer)
            c.arrive(c.header(kind, microbatch, hop))
            work = Work("forward" if kind == "forward" else "backward", 1, 1, 1, microbatch)
            c.do(ComputeDone(work, c.handle(), 8, 0.0, 0, 0.1))
    return c, StartReduce(BALLOT, 1, 1, 1, OWNERS)


def contacts(*members: Member) -> tuple[Contact, ...]:
    return tuple(Contact(member.peer, f"{member.peer}.example:1") for member in members)


def test_the_rows_follow_from_the_roster() -> None:
    c, start = ready()
    rows = (ReduceMember(HERE, "active", "5"), ReduceMember(THERE, "active", "a"), ReduceMember(COPY, "passive", "0"))
    assert summands(start, c.state.chain) == rows
    alone = replace(start, owners=(0,) * 4, without=(THERE.peer, "somebody of another stage"))
    assert summands(alone, c.state.chain) == (ReduceMember(HERE, "active", "f"), rows[2])
    assert owners_of(["5", "a"], 4) == OWNERS


def test_who_parks_a_stage_takes_no_part() -> None:
    c, _ = ready()
    c.decide(Roster(c.state.chain.head, 0, (Seating(1, THERE, "parked"),), (), (LEAD,)))
    assert [s.member for s in replicas(c.state.chain, 1)] == [HERE, COPY]


def test_whoever_lacks_an_address_asks_once_more_and_is_told_it() -> None:
    c, start = ready()
    out = c.tell(start)
    assert not of(out, Reduce)
    assert sent(out, ReduceReady, LEAD.peer)
    out = c.tell(replace(start, contacts=contacts(HERE, THERE, COPY)))
    (reduce,) = of(out, Reduce)
    assert [row.member for row in reduce.members] == [HERE, THERE, COPY]
    told = {command.peer: command.address for command in of(out, Introduce)}
    assert told == {peer: f"{peer}.example:1" for peer in (THERE.peer, COPY.peer)}


def test_whoever_knows_all_addresses_sums_at_once() -> None:
    c, start = ready()
    c.state.bench.introduce(contacts(THERE, COPY))
    c.state.bench.take()
    out = c.tell(start)
    assert of(out, Reduce) and not notes(out, "refused")
    assert {command.peer for command in of(out, Introduce)} == {THERE.peer, COPY.peer}, "the transport may have forgotten them"


def test_addresses_are_told_again_and_after_a_void() -> None:
    c = Lead(others=("a", "b", "a2", "b2"))
    started = [s for peer in ("a", "a2") for s in sent(c.ready(peer, 1), StartReduce)]
    assert [s.contacts for s in started] == [(), ()] and {s.without for s in started} == {()}
    (again,) = sent(c.ready("a", 1), StartReduce, "a")
    assert {contact.peer for contact in again.contacts} == {"a", "a2"}
    assert replace(again, contacts=()) == started[0]
    ledger = c.coordinator.ledger
    told = {row.member.peer: row.microbatches for row in summands(again, c.state.chain)}
    assert told == {peer: bitmap(ledger.owned(1, peer)) for peer in ("a", "a2")}
    c.tell(Stalled(BALLOT, 1, 1, 0, "", "a bad tensor"), "a")
    c.pass_time(3.0)
    assert c.coordinator.ledger.attempt == 2
    (first, *_) = [s for peer in ("a", "a2") for s in sent(c.ready(peer, 1), StartReduce)]
    assert first.contacts == again.contacts

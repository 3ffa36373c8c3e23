"""Which rung of the ladder a stage went on by, and how long each part took: told once, by who decides the next commit."""

from __future__ import annotations

import pytest

from protocol.chain import Chain
from protocol.commands import Command, Note
from protocol.events import Applied, Learned
from protocol.ids import Member
from protocol.messages import Held, Learning, Propose, Suspect, Wish
from protocol.records import Rebuild, Record, Roster, Seating, Source, record_id
from protocol.rungs import LADDER, Regain, regained
from protocol.stopwatch import Stopwatch
from tests.tools.core import BALLOT, LEAD, Core, a_manifest, holders, notes, sent
from tests.tools.lead import Lead, embed_all, votes, whole_step
from tests.unit.test_protocol_members import a_chain, commit

A, B, C = (Member(name, 1) for name in "abc")
BEFORE = (Seating(0, A, "active"), Seating(0, B, "passive"), Seating(1, B, "active"), Seating(1, C, "learner"))
BEFORE += (Seating(3, A, "parked"), Seating(3, C, "learner"))
COPIES = {"policy": "checkfree", "embedding_copies": 1, "rebuild_grace_s": 0.0}


def roster(joins: tuple[Seating, ...], leaves: tuple[Seating, ...] = ()) -> Roster:
    return Roster("p", 5, joins, leaves, (B,))


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (roster((Seating(0, B, "active"),), (BEFORE[0],)), {0: Regain("promotion", "b")}),
        (roster((Seating(0, B, "active"),)), {}),
        (roster((Seating(1, C, "active"),)), {1: Regain("handover", "c")}),
        (roster((Seating(1, C, "passive"),)), {}),
        (roster((Seating(0, C, "learner"),), (BEFORE[0],)), {}),
        (roster((Seating(2, C, "active"),)), {2: Regain("returned", "c")}),
        (roster((Seating(3, A, "active"),)), {3: Regain("parked", "a")}),
        (roster((Seating(3, C, "active"),), (Seating(3, A, "parked"),)), {3: Regain("parked", "c")}),
        (roster((Seating(1, B, "active", pinned=True),)), {}),
        (Rebuild("p", 5, 2, 1, (Source(1, "s", 1.0),), (Seating(2, C, "active", 1),), (B,)), {2: Regain("recovery", "c")}),
    ],
)
def test_each_member_reads_the_rung_from_the_record(record: Record, expected: dict[int, Regain]) -> None:
    assert regained(record, BEFORE, 5) == expected


def test_the_first_seats_are_no_recovery() -> None:
    manifest = a_manifest()
    assert regained(Roster("p", 0, tuple(holders(manifest)), (), (LEAD,)), (), 0) == {}
    assert a_chain(manifest, steps=0).regained == {}


def test_what_was_regained_is_known_until_the_next_commit_also_to_one_that_is_summed_up_to() -> None:
    manifest = a_manifest(num_block_stages=3, recovery=COPIES)
    chain = a_chain(manifest)
    lost = tuple(chain.active(2))
    chain.append(Roster(chain.head, 1, (), lost, (LEAD,)), ())
    sources = (Source(1, chain.state_ids[1], 0.5), Source(3, chain.state_ids[3], 0.5))
    chain.append(Rebuild(chain.head, 1, 2, 1, sources, (Seating(2, C, "active", 1),), (LEAD,)), ())
    expected = {2: Regain("recovery", "c")}
    late = Chain(manifest, None)
    assert not late.adopt(chain.summary(BALLOT, ()))
    assert chain.regained == late.regained == expected
    commit(chain, manifest)
    assert chain.regained == {}


def test_the_parts_of_a_recovery_are_those_of_its_first_loss_and_its_last_return() -> None:
    manifest = a_manifest(num_block_stages=3, recovery=COPIES)
    chain = a_chain(manifest)
    chain.regained[2] = Regain("recovery", "c")
    watch = Stopwatch(chain)
    watch.lost(2, 3.5)
    watch.decides(2, waited_s=12.0, grace_s=10.0)
    watch.look([], 100.0)
    watch.lost(2, 9.0)
    watch.look([2], 104.0)
    watch.decides(2, waited_s=1.0, grace_s=10.0)
    watch.look([], 110.0)
    (note,) = watch.committed(112.0)
    facts = {"stage": 2, "rung": "recovery", "peer": "c", "generation": 0, "step": 2}
    parts = {"detect_s": 3.5, "grace_s": 10.0, "wait_for_newcomer_s": 2.0, "first_commit_s": 2.0}
    assert note == Note("recovered", facts | parts)
    (again,) = watch.committed(120.0)
    assert again.fields == facts, "a part that nobody saw is not told"


# ---- the coordinator tells it, a member does not ----


def held(c: Lead, commands: list[Command], *voters: str) -> list[Command]:
    """Voters hold what is proposed."""
    record = sent(commands, Propose)[-1].record
    return [command for peer in voters for command in c.tell(Held(BALLOT, record_id(record)), peer)]


def test_the_coordinator_tells_of_a_rebuilt_stage_with_its_first_commit() -> None:
    c = Lead(recovery=COPIES | {"embedding_copies": 0, "newcomer_wait_s": 60.0})
    votes(c, whole_step(c))
    c.do(Applied(0, 1, c.state.chain.state_ids[0], "d", 1, 0.1))
    out = c.pass_time(4.0, silent=("b",))
    out += c.tell(Suspect(Member("b", 1), "silent too"), "a")
    out += c.pass_time(1.0, silent=("b",))
    (lost,) = notes(out, "lost")
    assert lost["silent_s"] == pytest.approx(4.5, abs=0.6)
    held(c, out, "a", "b")
    c.pass_time(2.0, silent=("b",))
    out = c.tell(Wish(C, -1, "c", "c:1", 0), "c")
    held(c, out + c.beats(), "a")
    assert c.state.chain.regained == {2: Regain("recovery", "c")}
    c.pass_time(3.0)
    c.tell(Learning(BALLOT, 2, c.state.chain.state_ids[2], "made", 0.0, c.state.chain.head), "c")
    c.beats(0.5)
    embed_all(c)
    out = c.own_stage()
    for member, stage in (("a", 1), ("c", 2)):
        out += c.ready(member, stage)
        out += c.reduced(member, stage)
    c.now += 0.25
    out = held(c, out, "a", "c")
    (told,) = notes(out, "recovered")
    assert (told["stage"], told["rung"], told["peer"], told["generation"], told["step"]) == (2, "recovery", "c", 1, 2)
    assert told["detect_s"] == lost["silent_s"]
    assert told["grace_s"] == 0.0
    assert told["wait_for_newcomer_s"] == pytest.approx(2.0, abs=0.6)
    assert told["first_commit_s"] == pytest.approx(0.75, abs=0.01)


def test_a_member_tells_how_its_own_seat_came_to_be_and_counts_nothing() -> None:
    manifest = a_manifest(num_block_stages=2, recovery=COPIES)
    copy = Seating(0, Member("p1.0", 1), "passive")
    c = Core(manifest, "p1.0", [*holders(manifest), copy])
    chain = c.state.chain
    out = c.decide(Roster(chain.head, 0, (Seating(0, copy.member, "active"),), (Seating(0, LEAD, "active"),), (LEAD,)))
    (told,) = notes(out, "provenance")
    assert (told["stage"], told["rung"], told["state_id"]) == (0, "promotion", chain.state_ids[0])
    assert c.state.bench.seats[0].state.provenance["rung"] == "promotion"
    assert not notes(out, "recovered")


def test_who_takes_a_stage_over_from_a_leaver_says_so_with_what_the_copy_took() -> None:
    manifest = a_manifest(num_block_stages=2)
    c = Core(manifest, "new", [*holders(manifest), Seating(2, Member("new", 1), "learner")])
    chain = c.state.chain
    assert c.state.bench.seats[2].state.provenance == {"rung": "copy"}
    c.do(Learned(2, chain.state_ids[2], 0, "d", 0, 1.0, 0, ("p2.0",), 96, 1.5))
    out = c.decide(Roster(chain.head, 0, (Seating(2, Member("new", 1), "active"),), (), (LEAD,)))
    (told,) = notes(out, "provenance")
    assert (told["rung"], told["from"], told["bytes"], told["transfer_s"]) == ("handover", ["p2.0"], 96, 1.5)
    assert told["rung"] in LADDER

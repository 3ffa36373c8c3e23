"""How the run stands reaches everybody, and is said again only to those whose heartbeats show that it did not arrive."""

from __future__ import annotations

from dataclasses import replace

from protocol.events import Tick
from protocol.ids import Ballot, Member
from protocol.messages import Heartbeat, Order, Standing, VoidStep, Wish
from tests.tools.core import BALLOT, Core, a_manifest, holders, sent
from tests.tools.lead import Lead, lead


def beat(c: Lead, peer: str, serial: int, after_s: float = 0.0, ballot: Ballot = BALLOT) -> list[Standing]:
    """What the coordinator tells the peer when it says which standing it heard."""
    ledger = c.coordinator.ledger
    message = Heartbeat(1, ballot, c.state.chain.head, ledger.step, ledger.attempt, standing=serial)
    return sent(c.tell(message, peer, after_s=after_s), Standing, peer)


def test_whoever_heard_it_is_not_told_again() -> None:
    c = lead()
    newest = c.coordinator.herald.serial
    for _ in range(30):
        assert not beat(c, "a", newest, after_s=1.0)
        assert not sent(c.do(Tick()), Standing)


def test_whoever_did_not_hear_it_is_told_once_in_a_while() -> None:
    c = lead()
    newest = c.coordinator.herald.serial
    c.do(Tick(), 5.0)
    (told,) = beat(c, "a", newest - 1)
    assert told == c.coordinator.herald.standing() and told.serial == newest
    assert not beat(c, "a", newest - 1, after_s=1.9)
    assert beat(c, "a", newest - 1, after_s=0.1)
    assert beat(c, "b", 0), "each by what it says itself"


def test_a_serial_of_another_ballot_is_no_answer() -> None:
    c = lead()
    newest = c.coordinator.herald.serial
    c.do(Tick(), 5.0)
    assert beat(c, "a", newest, ballot=Ballot(0, "before"))


def test_each_change_is_told_at_once() -> None:
    c = lead()
    before = c.coordinator.herald.serial
    out = c.tell(Order("pause", 1, ""), "a")
    assert {m.serial for m in sent(out, Standing)} == {before + 1}
    assert {command.peer for command in out if isinstance(getattr(command, "message", None), Standing)} == {"a", "b"}
    assert sent(out, Standing)[0].order == Order("pause", 1, "")


def test_a_spare_is_told_and_a_stranger_is_not() -> None:
    c = lead()
    assert not beat(c, "late", 0, after_s=9.0), "it has not wished for anything"
    c.tell(Wish(Member("late", 1), 1, "late", "late:1", 0), "late")
    assert sent(c.do(Tick(), 1.0), Standing, "late")
    assert not sent(c.do(Tick(), 1.0), Standing, "late")
    assert beat(c, "late", 0, after_s=2.0)


# ---- a member ----

STANDING = Standing(BALLOT, "training", "training", 0, -1, 0.0, 0, None, 5)


def member() -> Core:
    manifest = a_manifest()
    return Core(manifest, "p1.0", holders(manifest))


def serial_in_heartbeat(c: Core, leader: str = "lead") -> int:
    beats: list[Heartbeat] = sent(c.do(Tick(), 1.1), Heartbeat, leader)
    return beats[-1].standing


def test_a_heartbeat_names_the_newest_standing() -> None:
    c = member()
    assert serial_in_heartbeat(c) == 0
    c.tell(STANDING)
    assert serial_in_heartbeat(c) == 5
    c.tell(replace(STANDING, serial=7, sentence="paused"))
    assert serial_in_heartbeat(c) == 7


def test_what_comes_after_a_newer_one_is_dropped() -> None:
    c = member()
    c.tell(replace(STANDING, serial=7, sentence="paused", phase="paused"))
    c.tell(STANDING)
    assert (c.state.outlook.phase, c.state.outlook.sentence) == ("paused", "paused")
    assert serial_in_heartbeat(c) == 7
    c.tell(replace(STANDING, serial=7, sentence="paused again", phase="paused"))
    assert c.state.outlook.sentence == "paused again", "twice is not late"


def test_another_ballot_counts_anew() -> None:
    c = member()
    c.tell(replace(STANDING, serial=7))
    c.tell(replace(STANDING, ballot=Ballot(2, "p2.0"), serial=1, sentence="taken over"), "p2.0")
    assert c.state.outlook.sentence == "taken over"
    assert serial_in_heartbeat(c, "p2.0") == 1


def test_nothing_that_was_heard_under_another_ballot_is_named() -> None:
    c = member()
    c.tell(replace(STANDING, serial=7))
    c.state.leader.speaks("lead", 1, Ballot(2, "lead"))
    assert c.state.outlook.serial(c.state.ballot) == 0


def test_what_is_said_besides_is_over_with_the_next_step() -> None:
    """Nobody says "training" again where that did not change."""
    c = Core(a_manifest(), "p1.0", holders(a_manifest()))
    c.tell(Standing(BALLOT, "training", "training", 0, -1, 0.0))
    c.open()
    c.tell(VoidStep(BALLOT, 1, 1, "a reason"))
    assert c.state.outlook.sentence == "step 1 voided: a reason"
    c.open(attempt=2)
    assert c.state.outlook.sentence == "training"

"""What nobody answers is said again, ever more seldom."""

from __future__ import annotations

from protocol.commands import Compute
from protocol.events import ComputeDone, Reduced, Tick
from protocol.messages import ReducedReport, ReduceReady, StartReduce
from protocol.repeats import Repeats
from tests.tools.core import BALLOT, Core, a_manifest, holders, of, sent
from tests.tools.lead import embed_all, lead


def test_it_is_due_at_once_and_then_after_twice_as_long_each_time() -> None:
    again = Repeats(1.0)
    assert [now for now in range(64) if again.is_due("key", float(now))] == [0, 2, 6, 14, 30, 46, 62]


def test_what_was_said_is_due_after_two_heartbeats() -> None:
    again = Repeats(0.5)
    again.said("key", 0.0)
    assert not again.is_due("key", 0.9)
    assert again.is_due("other", 0.9)
    assert again.is_due("key", 1.0)
    again.said("key", 1.0)
    assert again.is_due("key", 2.0), "something new begins anew"


def test_what_is_forgotten_is_due() -> None:
    again = Repeats(1.0)
    assert again.is_due("a", 0.0)
    assert again.is_due("b", 0.0)
    again.forget("a")
    assert again.is_due("a", 0.0)
    assert not again.is_due("b", 0.0)
    again.clear()
    assert again.is_due("b", 0.0)


def test_a_seat_reports_ever_more_seldom() -> None:
    """A minute in which the coordinator answers nothing; then the next thing to say is said at once."""
    manifest = a_manifest()
    c = Core(manifest, "p1.0", holders(manifest))
    out = c.open()
    for microbatch in range(manifest.batch.num_microbatches):
        hop = next(at for at, hop in enumerate(c.route(microbatch).hops) if hop.peer == "p1.0")
        for kind in ("forward", "backward"):
            for compute in of(c.arrive(c.header(kind, microbatch, hop)), Compute):
                out += c.do(ComputeDone(compute.work, c.handle(), 8, 0.0, 0, 0.1))
    assert len(sent(out, ReduceReady)) == 1
    begun, said = c.now, []
    for _ in range(240):
        said += [c.now - begun for _ in sent(c.do(Tick(), 0.25), ReduceReady)]
    assert [round(at) for at in said[:2]] == [2, 6]
    assert 4 <= len(said) <= 6
    c.tell(StartReduce(BALLOT, 1, 1, 1, (0,) * manifest.batch.num_microbatches))
    assert len(sent(c.do(Reduced(1, 1, 1, "sum1", 1.0, 0.1)), ReducedReport)) == 1


def test_a_passive_replica_is_urged_ever_more_seldom() -> None:
    c = lead(recovery={"policy": "checkfree", "embedding_copies": 2})
    embed_all(c)
    c.own_stage()
    copies = [s.member.peer for s in c.state.chain.seated(0) if s.role == "passive"]
    assert copies, "there is nobody to be urged"
    told = [sent(c.beats(0.5), StartReduce, copies[0]) for _ in range(40)]
    assert 2 <= sum(map(len, told)) <= 4

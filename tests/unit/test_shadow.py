"""Policy `shadow`, the pure part: who keeps what, which chunk comes next, how much of the link it takes, what is sealed, and
what a coordinator makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.chain import Chain
from protocol.commands import Command, DropShadow, KeepShadow, Note, Regrow, SealShadow
from protocol.custody import Custody
from protocol.events import ShadowSealed
from protocol.ids import Member
from protocol.link_share import FIRST, RECENT, LinkShare, LinkSpeed
from protocol.manifest import Manifest
from protocol.messages import Kept
from protocol.records import Rebuild, Roster, Seating, Shadow
from protocol.recovery import Next
from protocol.restoring import Shadowed
from protocol.rungs import Regain
from protocol.shadow_ledger import Ledger, is_close_enough, refresh_steps, shadow_misfit
from protocol.shadow_place import distance, keeper_of, keepers
from protocol.shadows import Shadows
from tests.tools.core import BALLOT, LEAD, a_manifest
from tests.unit.test_protocol_members import a_chain, commit
from tests.unit.test_protocol_recovery import NEW, Lost

EVERY = 4
ANSWER_S = 5.0
"""A lapse and two heartbeats."""


def a_run(num_block_stages: int = 5, **more: Any) -> Manifest:
    rules = {"policy": "shadow", "shadow_every": EVERY, "rebuild_grace_s": 10.0, "newcomer_wait_s": 5.0}
    return a_manifest(num_block_stages=num_block_stages, recovery=rules | more, max_steps=1000)


# ---- who keeps it ----


@pytest.mark.parametrize("num_stages", range(2, 18))
def test_each_node_keeps_one_stage_as_far_from_its_own_as_there_is(num_stages: int) -> None:
    chain = a_chain(a_run(num_stages - 1))
    found = keepers(chain)
    assert sorted(found) == list(range(num_stages))
    assert len(set(found.values())) == num_stages
    for stage, member in found.items():
        [seat] = chain.seats_of(member)
        assert distance(stage, seat.stage, num_stages) == num_stages // 2 >= min(2, num_stages // 2)


def test_neighbours_lost_together_leave_both_their_keepers() -> None:
    chain = a_chain(a_run(4))
    for stage in range(5):
        lost = {chain.active(s)[0].member for s in (stage, (stage + 1) % 5)}
        assert not lost & {keeper_of(s, chain) for s in (stage, (stage + 1) % 5)}


def test_who_holds_a_neighbour_besides_keeps_nothing_for_it_while_others_are_there() -> None:
    chain = a_chain(a_run(5), replicas=2)
    assert keeper_of(1, chain) == Member("p4.0", 1)
    second = Seating(2, Member("p4.0", 1), "learner")
    chain.append(Roster(chain.head, chain.step, (second,), (), (LEAD,)), ())
    assert keeper_of(1, chain) == Member("p4.1", 1)
    own = Seating(1, Member("p4.1", 1), "passive")
    chain.append(Roster(chain.head, chain.step, (own,), (), (LEAD,)), ())
    assert keeper_of(1, chain) == Member("p3.0", 1), "nobody keeps what it holds"


def test_who_is_alone_keeps_nothing() -> None:
    manifest = a_run(1)
    chain = Chain(manifest, LEAD)
    both = (Seating(0, LEAD, "active"), Seating(1, LEAD, "active"))
    chain.append(Roster(chain.head, 0, both, (), (LEAD,)), ())
    assert keepers(chain) == {}


# ---- which chunk ----


def test_what_never_came_comes_first_and_each_chunk_again_before_it_is_too_old() -> None:
    ledger = Ledger(10, 4, EVERY, generation=0)
    assert [(c.first, c.count) for c in ledger.chunks] == [(0, 4), (4, 4), (8, 2)]
    for first in (0, 4, 8):
        assert not ledger.is_whole and ledger.oldest == -1
        chunk = ledger.next(7)
        assert chunk and chunk.first == first
        ledger.settle(chunk, 7, 7, 1.0)
    assert ledger.is_whole and ledger.next(7 + refresh_steps(EVERY) - 1) is None
    chunk = ledger.next(7 + refresh_steps(EVERY))
    assert chunk is ledger.chunks[0]
    ledger.settle(chunk, 10, 10, 1.1)
    assert (ledger.oldest, ledger.newest, ledger.age, ledger.lr_factor) == (7, 10, 7, 1.1)
    ledger.settle(chunk, 9, 9, 1.0)
    assert (chunk.step, ledger.lr_factor) == (10, 1.1), "nothing becomes older"
    assert [c.first for c in ledger.covering(3, 6)] == [0, 4, 8]
    assert [c.first for c in ledger.covering(4, 4)] == [4]


@given(every=st.integers(2, 60), num_chunks=st.integers(1, 40), late=st.integers(0, 14))
def test_with_a_link_that_carries_it_chunks_are_never_too_far_apart(every: int, num_chunks: int, late: int) -> None:
    """A link that brings all of it within the steps that are in hand, from whatever step on."""
    ledger = Ledger(num_chunks, 1, every, generation=0)
    in_hand = every - refresh_steps(every)
    per_step = -(-num_chunks // max(1, in_hand))
    for step in range(late, late + 3 * every):
        for _ in range(per_step):
            if chunk := ledger.next(step):
                ledger.settle(chunk, step, step, 1.0)
        if ledger.is_whole:
            assert is_close_enough(ledger.oldest, ledger.newest, step, every)
    assert ledger.is_whole


def a_shadow(**changes: Any) -> Shadow:
    return replace(Shadow(Member("p5.0", 1), "d" * 64, 8, 10, 0, 1.0), **changes)


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({}, 17),
        ({"oldest": 5}, 10),
        ({"newest": 11}, 10),
        ({"oldest": 11}, 12),
        ({"oldest": -1, "newest": 1}, 2),
        ({"digest": ""}, 10),
        ({"optimizer_age": -1}, 10),
        ({"lr_factor": 0.0}, 10),
        ({"lr_factor": float("nan")}, 10),
    ],
)
def test_chunks_too_far_apart_or_too_old_are_no_shadow(changes: dict[str, Any], step: int) -> None:
    assert shadow_misfit(a_shadow(), 10, EVERY) == shadow_misfit(a_shadow(), 16, EVERY) == ""
    assert shadow_misfit(a_shadow(**changes), step, EVERY)


# ---- how much of the link ----


@given(
    share=st.sampled_from([0.01, 0.1, 0.5, 1.0]),
    sizes=st.lists(st.integers(1, 1 << 20), min_size=1, max_size=60),
    rates=st.lists(st.floats(1e5, 1e8), min_size=1, max_size=5),
)
def test_bytes_over_time_stay_within_the_share_of_what_the_link_carries(
    share: float, sizes: list[int], rates: list[float]
) -> None:
    """Whatever of it is left to them, and however that changes: by a clock of its own."""
    link, speed, now = LinkShare(share), LinkSpeed(), 50.0
    for number, size in enumerate(sizes):
        now += link.wait_s(now)
        began = now
        now += size / rates[number % len(rates)]
        link.moved(size, began, now, speed)
        waited = now + link.wait_s(now) - 50.0
        owed = sum(sizes[: number + 1]) if number + 1 < FIRST else 0
        assert link.num_bytes - owed <= share * waited * max(rates) * (1 + 1e-6)
        assert not owed or waited >= 2 * (now - began), "the first ones leave it alone for as long as they took"
    assert link.num_bytes == sum(sizes)


@pytest.mark.parametrize("held_up", [0, 1, FIRST, FIRST + 1, RECENT])
def test_what_a_chunk_waits_behind_others_is_not_its_doing(held_up: int) -> None:
    """One in three meets a free link: it is as if all did, but for the time that they take themselves."""
    size, rate, queue_s = 4e6, 10e6, 20.0
    link, speed, now = LinkShare(0.1), LinkSpeed(), 0.0
    for number in range(60):
        now += link.wait_s(now)
        began = now
        now += size / rate + (0.0 if number % 3 == 2 and number >= held_up else queue_s)
        link.moved(int(size), began, now, speed)
        if number >= max(held_up, FIRST) + 3:
            assert now - began + link.wait_s(now) == pytest.approx(max(now - began, size / rate / 0.1)), number


def test_a_link_that_became_slower_is_found_to_be_after_some_chunks() -> None:
    link, speed, now = LinkShare(0.1), LinkSpeed(), 0.0
    for number in range(FIRST + RECENT + 1):
        took, began = 0.1 if number < FIRST else 1.0, now + link.wait_s(now)
        now = began + took
        link.moved(1_000_000, began, now, speed)
    assert link.wait_s(now) == pytest.approx(9.0)


# ---- at a node ----


class Keeper:
    """One node's part of a chain that a test makes grow."""

    def __init__(self, peer: str = "p4.0", manifest: Manifest | None = None) -> None:
        self.manifest = manifest or a_run()
        self.chain = a_chain(self.manifest)
        self._out: list[Command] = []
        self.told: list[Any] = []
        self.shadows = Shadows(self.manifest, peer, self.chain, self._out.append, self.told.append)

    def look(self) -> list[Command]:
        self.shadows.look()
        out, self._out[:] = list(self._out), []
        return out

    def reports(self) -> list[Any]:
        self.told.clear()
        self.shadows.report(BALLOT)
        return self.told

    def sealed(self, shadow: Shadow | None) -> None:
        self.shadows.sealed(ShadowSealed(1, shadow), BALLOT)

    def lose(self, stage: int) -> None:
        gone = tuple(self.chain.seated(stage))
        self.chain.append(Roster(self.chain.head, self.chain.step, (), gone, (LEAD,)), ())

    def rebuild(self, shadow: Shadow | None) -> None:
        generation = self.chain.generations[1] + 1
        joins = (Seating(1, NEW, "active", generation),)
        record = Rebuild(self.chain.head, self.chain.step, 1, generation, (), joins, (LEAD,), shadow)
        assert self.chain.fits(record) == ""
        self.chain.append(record, ())


def test_a_shadow_is_kept_and_sealed_when_its_stage_is_lost_and_the_coordinator_hears_what_it_is() -> None:
    keeper = Keeper()
    assert keeper.look() == [KeepShadow(1, 0)]
    commit(keeper.chain, keeper.manifest)
    assert keeper.look() == [] and keeper.reports() == []
    keeper.lose(1)
    assert keeper.look() == [SealShadow(1)]
    assert keeper.look() == [] and keeper.reports() == [], "it is not known yet what it is"
    shadow = a_shadow(keeper=Member("p4.0", 1), oldest=1, newest=2)
    keeper.sealed(shadow)
    [note] = keeper.look()
    assert isinstance(note, Note) and note.fields["newest_step"] == 2
    assert keeper.reports() == [Shadowed(BALLOT, 1, 2, shadow)]
    keeper.rebuild(shadow)
    assert keeper.look() == []
    commit(keeper.chain, keeper.manifest)
    assert keeper.look() == [KeepShadow(1, 1, as_of=2)], "what is kept is what the stage was after step 2"
    assert keeper.reports() == []


def test_what_its_stage_was_not_restored_of_is_of_no_use_to_the_next_generation() -> None:
    keeper = Keeper()
    keeper.look()
    keeper.lose(1)
    keeper.look()
    keeper.sealed(a_shadow(keeper=Member("p4.0", 1), oldest=0, newest=1))
    other = a_shadow(keeper=Member("p3.0", 1), oldest=0, newest=1)
    keeper.rebuild(other)
    keeper.look()
    commit(keeper.chain, keeper.manifest)
    assert keeper.look() == [KeepShadow(1, 1)]


def test_a_holder_that_is_back_lets_it_go_on() -> None:
    keeper = Keeper()
    keeper.look()
    [gone] = keeper.chain.seated(1)
    keeper.lose(1)
    keeper.look()
    keeper.sealed(None)
    keeper.look()
    assert keeper.reports() == [Shadowed(BALLOT, 1, 1, None)]
    keeper.chain.append(Roster(keeper.chain.head, 1, (gone,), (), (LEAD,)), ())
    assert keeper.look() == [KeepShadow(1, 0)]
    keeper.sealed(None)
    assert keeper.look() == [], "an answer that came too late"


def test_another_keeper_ends_it_but_not_while_the_stage_is_lost() -> None:
    keeper = Keeper()
    keeper.look()
    keeper.lose(1)
    keeper.look()
    second = Seating(2, Member("p4.0", 1), "learner")
    keeper.chain.append(Roster(keeper.chain.head, 1, (second,), (), (LEAD,)), ())
    assert keeper.look() == [], "it may be all that is left of the stage"
    back = Seating(1, Member("p1.0", 1), "active")
    keeper.chain.append(Roster(keeper.chain.head, 1, (back,), (), (LEAD,)), ())
    assert keeper.look() == [DropShadow(1)]


def test_who_leaves_its_lineage_drops_it() -> None:
    keeper = Keeper()
    keeper.look()
    keeper.shadows.leave()
    assert keeper._out == [DropShadow(1)] and not keeper.shadows.kept


def test_a_keeper_that_was_none_before_the_loss_says_that_it_has_nothing() -> None:
    keeper = Keeper("p4.0", a_run(4))
    assert keeper.look() == [KeepShadow(2, 0)]
    keeper.lose(3)
    keeper.lose(1)
    keeper.look()
    assert keeper_of(1, keeper.chain) == Member("p4.0", 1)
    assert keeper.reports() == [Shadowed(BALLOT, 1, 1, None)]


def test_other_policies_keep_nothing() -> None:
    keeper = Keeper(manifest=a_manifest(5, policy="checkfree"))
    assert keeper.look() == []


# ---- at the coordinator ----


SHADOW = a_shadow()


class LostStage(Lost):
    """p5.0 keeps stage 2, p2.0 stage 5."""

    def __init__(self, *stages: int, **more: Any) -> None:
        super().__init__(*stages, manifest=a_run(**more), steps=10)

    def tell(self, stage: int = 2, shadow: Shadow | None = SHADOW, by: Member | None = None, step: int = 10) -> None:
        member = by or (shadow.keeper if shadow else Member("p5.0", 1))
        self.view.heard(member.peer, 0.0)
        self.recovery.shadows.on_shadowed(member, Shadowed(BALLOT, stage, step, shadow))

    def hears(self, *peers: str, at: float = 0.0) -> None:
        for peer in peers:
            self.view.heard(peer, at)


def test_a_lost_stage_is_restored_of_what_its_keeper_has() -> None:
    lost = LostStage(2)
    lost.wish()
    lost.tell()
    lost.next(0.0)
    lost.hears("p5.0", at=10.0)
    found = lost.next(10.0)
    record = found.record
    assert isinstance(record, Rebuild) and record.shadow == a_shadow() and record.sources == ()
    assert "kept chunks of steps 8 to 10" in found.sentence
    assert record.joins == (Seating(2, NEW, "active", 1),)
    assert lost.chain.fits(record) == ""
    lost.decide(record)
    assert lost.chain.regained == {2: Regain("shadow", NEW.peer)}
    assert lost.next(11.0).sentence == "stage 2 is being restored by new"
    lost.made(NEW, 2)
    assert lost.next(12.0) == Next()


def test_the_first_stage_and_neighbours_are_restored_too() -> None:
    lost = LostStage(0, 1)
    lost.wish()
    lost.wish(Member("second", 1))
    for stage in (0, 1):
        lost.tell(stage, a_shadow(keeper=Member(f"p{stage + 3}.0", 1)))
    lost.next(0.0)
    lost.hears("p3.0", "p4.0", at=40.0)
    for stage in (0, 1):
        record = lost.next(40.0).record
        assert isinstance(record, Rebuild) and (record.stage, record.sources) == (stage, ()), lost.next(40.0).sentence
        assert record.shadow and lost.chain.fits(record) == ""
        lost.decide(record)


def test_a_keeper_that_lives_is_waited_for_and_without_it_the_stage_is_made_of_its_neighbours() -> None:
    lost = LostStage(2, rebuild_grace_s=0.0)
    lost.wish()
    lost.hears("p5.0")
    assert "to say what it kept" in lost.next(0.0).sentence
    lost.hears("p5.0", at=ANSWER_S)
    record = lost.next(ANSWER_S).record
    assert isinstance(record, Rebuild) and [s.stage for s in record.sources] == [1, 3]
    none = LostStage(2, rebuild_grace_s=0.0)
    none.wish()
    none.tell(shadow=None)
    record = none.next(0.0).record
    assert isinstance(record, Rebuild) and record.shadow is None, "it has nothing whole"
    gone = LostStage(2, 5, rebuild_grace_s=0.0)
    gone.wish()
    assert "to say what it kept" in gone.next(0.0).sentence, "its keeper went with it; who is it now says that it has nothing"
    gone.tell(shadow=None, by=keeper_of(2, gone.chain))
    record = gone.next(0.0).record
    assert isinstance(record, Rebuild) and [s.stage for s in record.sources] == [1, 3]


def test_stage_0_is_not_given_up_before_its_keeper_has_spoken() -> None:
    lost = LostStage(0, rebuild_grace_s=0.0)
    lost.wish()
    lost.hears("p3.0")
    lost.next(0.0)
    lost.hears("p3.0", at=4.0)
    assert not lost.next(4.0).is_end
    lost.tell(0, None, by=Member("p3.0", 1))
    found = lost.next(5.0)
    assert found.is_end and "stage 0 is lost" in found.sentence


@pytest.mark.parametrize(
    ("by", "shadow", "step"),
    [
        (Member("p5.0", 1), a_shadow(), 9),
        (Member("p4.0", 1), a_shadow(), 10),
        (Member("p5.0", 1), a_shadow(oldest=1), 10),
        (Member("stranger", 1), a_shadow(keeper=Member("stranger", 1)), 10),
    ],
)
def test_what_is_told_of_another_moment_of_others_or_does_not_fit_is_not_used(by: Member, shadow: Shadow, step: int) -> None:
    lost = LostStage(2)
    lost.tell(2, shadow, by, step)
    assert lost.recovery.shadows.best(2, 0.0) is None


def test_a_keeper_that_is_lost_meanwhile_makes_it_begin_again_of_the_neighbours() -> None:
    lost = LostStage(2)
    lost.wish()
    lost.tell()
    lost.hears("p5.0", at=10.0)
    lost.decide(lost.rebuild(10.0))
    lost.lose(5)
    record = lost.next(11.0).record
    assert isinstance(record, Rebuild) and (record.generation, record.shadow) == (2, None)
    assert [s.stage for s in record.sources] == [1, 3] and record.joins[0].member == NEW


def test_a_keeper_that_has_something_else_than_was_decided_makes_it_begin_again_of_that() -> None:
    lost = LostStage(2)
    lost.wish()
    lost.tell()
    lost.hears("p5.0", at=10.0)
    lost.decide(lost.rebuild(10.0))
    again = a_shadow(digest="e" * 64)
    lost.tell(shadow=again)
    lost.hears("p5.0", at=11.0)
    record = lost.next(11.0).record
    assert isinstance(record, Rebuild) and (record.generation, record.shadow) == (2, again)


def test_the_younger_of_an_older_copy_and_a_shadow_is_taken() -> None:
    lost = LostStage(2)
    lost.wish(Member("p2.1", 1), kept=(Kept(2, lost.chain.past[-1].parents[2], "d"),))
    lost.tell()
    lost.next(0.0)
    lost.hears("p5.0", at=10.0)
    record = lost.next(10.0).record
    assert isinstance(record, Rebuild) and record.shadow is None and record.sources[0].stage == 2
    lost.tell(shadow=a_shadow(oldest=10))
    lost.hears("p5.0", at=10.0)
    record = lost.next(10.0).record
    assert isinstance(record, Rebuild) and record.shadow == a_shadow(oldest=10)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"shadow": a_shadow(keeper=Member("stranger", 1))}, "is not restored of a shadow"),
        ({"shadow": a_shadow(oldest=1)}, "steps apart"),
        ({"generation": 2}, "makes generation 2"),
        ({"stage": 1, "joins": (Seating(1, NEW, "active", 1),)}, "has holders"),
    ],
)
def test_a_rebuild_that_says_something_else_is_refused(change: dict[str, Any], why: str) -> None:
    lost = LostStage(2)
    lost.wish()
    lost.tell()
    lost.hears("p5.0", at=10.0)
    record = lost.rebuild(10.0)
    assert why in lost.chain.fits(replace(record, **change))


def test_other_policies_restore_nothing_of_shadows() -> None:
    lost = Lost(2)
    lost.wish()
    record = lost.rebuild(10.0)
    assert "not restored of a shadow" in lost.chain.fits(replace(record, sources=(), shadow=a_shadow(keeper=LEAD)))
    lost.recovery.shadows.on_shadowed(LEAD, Shadowed(BALLOT, 2, 1, a_shadow(keeper=LEAD)))
    assert lost.recovery.shadows.best(2, 0.0) is None


# ---- at who takes it ----


def test_who_takes_it_is_told_of_what_and_keeps_its_learning_rate() -> None:
    lost = LostStage(2)
    lost.wish()
    lost.tell(shadow=a_shadow(lr_factor=1.05))
    lost.hears("p5.0", at=10.0)
    record, out = lost.rebuild(10.0), list[Command]()
    lost.decide(record)
    custody = Custody(lost.manifest, NEW.peer, lost.chain, out.append, lambda _: None)
    custody.regrow(record.joins[0], record)
    [command] = [c for c in out if isinstance(c, Regrow)]
    assert (command.shadow, command.sources, command.lr_factor) == (record.shadow, (), 1.05)
    told = custody.seats[2].state.provenance
    assert (told["rung"], told["keeper"], told["oldest_step"], told["newest_step"]) == ("shadow", "p5.0", 8, 10)

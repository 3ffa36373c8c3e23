"""What a lost stage is made of, when, and at whom: every row of the recovery ladder, and its refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.averaging import sources_of
from protocol.commands import DropSeat, Regrow
from protocol.fork import unmakeable
from protocol.ids import Member
from protocol.manifest import Manifest, OptimizerSection
from protocol.membership import Membership
from protocol.messages import Kept, Learning, Wish
from protocol.recipes import CLIPPED_EXTRA, MomentShares, moment_shares, recipe, weights_of
from protocol.records import Rebuild, Role, Roster, Seating, Source
from protocol.recovery import Next, Recovery
from protocol.view import View
from tests.tools.core import BALLOT, LEAD, Core, a_manifest, holders
from tests.unit.test_protocol_members import a_chain, apply, commit

NEW = Member("new", 1)
GRACE = {"policy": "checkfree", "rebuild_grace_s": 10.0, "newcomer_wait_s": 5.0, "embedding_copies": 0}


def a_run(num_block_stages: int = 4, **recovery: object) -> Manifest:
    return a_manifest(num_block_stages=num_block_stages, policy="checkfree").model_copy(
        update={"recovery": a_manifest().recovery.model_copy(update=GRACE | recovery)}
    )


class Lost:
    """A run after a step, some stages of which nobody holds."""

    def __init__(self, *stages: int, manifest: Manifest | None = None, replicas: int = 1, steps: int = 1) -> None:
        self.manifest = manifest or a_run()
        self.chain = a_chain(self.manifest, replicas=replicas, steps=steps)
        self.lose(*stages)
        self.members = Membership(self.manifest, self.chain)
        self.view = View(self.manifest.timing.lapse_s)
        self.recovery = Recovery(self.manifest, LEAD, self.chain, self.view, self.members)

    def lose(self, *stages: int) -> None:
        leaves = tuple(s for s in self.chain.seatings if s.stage in stages)
        if leaves:
            self.chain.append(Roster(self.chain.head, self.chain.step, (), leaves, (LEAD,)), ())

    def wish(self, member: Member = NEW, stage: int = -1, memory_bytes: int = 0, kept: tuple[Kept, ...] = ()) -> None:
        self.members.on_wish(Wish(member, stage, "n", "x:1", memory_bytes, kept))

    def next(self, now: float) -> Next:
        return self.recovery.next(now)

    def rebuild(self, now: float) -> Rebuild:
        self.recovery.next(0.0)
        record = self.next(now).record
        assert isinstance(record, Rebuild), self.next(now).sentence
        assert self.chain.fits(record) == ""
        return record

    def decide(self, record: Rebuild) -> None:
        self.chain.append(record, ())
        for join in record.joins:
            self.members.gathering.leave(join.member)

    def made(self, member: Member, stage: int) -> None:
        self.recovery.on_learning(member, Learning(BALLOT, stage, self.chain.state_ids[stage], "digest", 0.0, self.chain.head))


# ---- what it is made of ----


def test_an_interior_stage_is_the_mean_of_its_neighbours_by_their_gradient_norms() -> None:
    manifest = a_run()
    weights = weights_of([0.0, 9.0, 4.0, 1.0, 16.0], 1, manifest)
    assert weights == [0.0, 3.0, 2.0, 1.0, 4.0]
    made = recipe(2, [0, 1, 3, 4], list("abcde"), weights, manifest)
    assert made.sources == (Source(1, "b", 0.75), Source(3, "d", 0.25))


@pytest.mark.parametrize(("stage", "neighbour"), [(1, 2), (4, 3)])
def test_an_outer_stage_is_a_copy_of_its_only_neighbour(stage: int, neighbour: int) -> None:
    manifest = a_run()
    whole = [s for s in range(5) if s != stage]
    made = recipe(stage, whole, list("abcde"), [1.0] * 5, manifest)
    assert made.sources == (Source(neighbour, "abcde"[neighbour], 1.0),)


def test_adjacent_stages_are_made_of_the_nearest_survivors_by_distance() -> None:
    manifest = a_run()
    made = recipe(2, [0, 1, 4], list("abcde"), [1.0] * 5, manifest)
    assert [s.stage for s in made.sources] == [1, 4]
    assert [s.coefficient for s in made.sources] == pytest.approx([2 / 3, 1 / 3])
    assert recipe(1, [0, 3], list("abcde"), [1.0] * 5, manifest).sources == (Source(3, "d", 1.0),)


def test_stage_0_is_no_source_and_is_not_made() -> None:
    manifest = a_run()
    assert recipe(0, [1, 2, 3, 4], list("abcde"), [1.0] * 5, manifest).sources == ()
    assert recipe(1, [0], list("abcde"), [1.0] * 5, manifest).sources == ()


@pytest.mark.parametrize("bad", [0.0, math.inf, math.nan])
def test_a_norm_that_says_nothing_makes_it_the_plain_mean_and_that_is_said(bad: float) -> None:
    made = recipe(2, [1, 3], list("abcde"), [1.0, bad, 1.0, 1.0, 1.0], a_run())
    assert [s.coefficient for s in made.sources] == [0.5, 0.5]
    assert "not finite" in made.sentence


def test_the_papers_letter_is_available() -> None:
    clipped = a_run(weighting="gradient_norm_clipped")
    assert weights_of([0.0, 100.0, 0.25], 1, clipped) == [0.0, 1.0 + CLIPPED_EXTRA, 0.5 + CLIPPED_EXTRA]
    assert weights_of([0.0, 100.0, 0.25, 0.0, 0.0], 1, a_run(weighting="uniform")) == [1.0] * 5


NORMS = (7.0, 3.0, 2.0, 0.5, 4.0)
"""Of stages 0..4 in the last step."""
EXTRA = CLIPPED_EXTRA


@pytest.mark.parametrize("policy", ["checkfree", "checkfree_plus"])
@pytest.mark.parametrize(
    ("weighting", "lost", "gone", "expected"),
    [
        ("gradient_norm", 2, {2}, {1: 3.0 / 3.5, 3: 0.5 / 3.5}),
        ("gradient_norm", 3, {3}, {2: 2.0 / 6.0, 4: 4.0 / 6.0}),
        ("gradient_norm_clipped", 2, {2}, {1: (1.0 + EXTRA) / (1.5 + 2 * EXTRA), 3: (0.5 + EXTRA) / (1.5 + 2 * EXTRA)}),
        ("gradient_norm_clipped", 3, {3}, {2: 0.5, 4: 0.5}),
        ("uniform", 2, {2}, {1: 0.5, 3: 0.5}),
        ("gradient_norm", 1, {1}, {2: 1.0}),
        ("gradient_norm_clipped", 4, {4}, {3: 1.0}),
        ("uniform", 4, {4}, {3: 1.0}),
        ("gradient_norm", 2, {2, 3}, {1: 3.0 / 5.0, 4: 2.0 / 5.0}),
        ("gradient_norm", 3, {2, 3}, {1: 1.5 / 5.5, 4: 4.0 / 5.5}),
        ("uniform", 3, {2, 3}, {1: 1 / 3, 4: 2 / 3}),
        ("gradient_norm", 1, {1, 2}, {3: 1.0}),
        ("gradient_norm", 1, {0, 1}, {2: 1.0}),
        ("gradient_norm", 2, {1, 2, 3}, {4: 1.0}),
        ("gradient_norm", 0, {0}, {}),
        ("gradient_norm", 2, {1, 2, 3, 4}, {}),
    ],
)
def test_every_row_of_the_ladder(policy: str, weighting: str, lost: int, gone: set[int], expected: dict[int, float]) -> None:
    """The table of the design, in the run's own numbers: stage -> coefficient; none: it is refused."""
    manifest = a_run(policy=policy, weighting=weighting)
    weights = weights_of([norm**2 for norm in NORMS], 1, manifest)
    made = recipe(lost, set(range(5)) - gone, list("abcde"), weights, manifest)
    assert {s.stage: s.coefficient for s in made.sources} == pytest.approx(expected)
    assert all(s.state_id == "abcde"[s.stage] for s in made.sources)
    assert made.sentence


@pytest.mark.parametrize(
    ("lost", "gone", "copied", "mean"),
    [
        (1, {1}, {2: 1.0}, {2: 1.0}),
        (2, {2}, {1: 1.0}, {1: 0.5, 3: 0.5}),
        (3, {3}, {2: 1.0}, {2: 0.5, 4: 0.5}),
        (4, {4}, {3: 1.0}, {3: 1.0}),
        (2, {2, 3}, {1: 1.0}, {1: 0.5, 4: 0.5}),
        (3, {2, 3}, {4: 1.0}, {1: 0.5, 4: 0.5}),
        (1, {1, 2}, {3: 1.0}, {3: 1.0}),
        (1, {0, 1}, {2: 1.0}, {2: 1.0}),
        (4, {2, 3, 4}, {1: 1.0}, {1: 1.0}),
        (0, {0}, {}, {}),
        (2, {1, 2, 3, 4}, {}, {}),
    ],
)
@pytest.mark.parametrize("squared", [[norm**2 for norm in NORMS], [], [1.0, math.inf, 0.0, 1.0, 1.0]])
def test_every_row_of_the_baselines_whatever_the_norms_are(
    lost: int, gone: set[int], copied: dict[int, float], mean: dict[int, float], squared: list[float]
) -> None:
    """`copy`: the nearest survivor, of two as near the one below; `uniform`: the plain mean of the nearest on each side."""
    for policy, expected in (("copy", copied), ("uniform", mean)):
        manifest = a_run(policy=policy)
        made = recipe(lost, set(range(5)) - gone, list("abcde"), weights_of(squared, 1, manifest), manifest)
        assert {s.stage: s.coefficient for s in made.sources} == expected
        assert all(s.state_id == "abcde"[s.stage] for s in made.sources)
        assert made.sentence


@pytest.mark.parametrize("policy", ["copy", "uniform"])
def test_a_baselines_rebuild_is_refused_where_another_policys_coefficients_are_named(policy: str) -> None:
    lost = Lost(2, manifest=a_run(policy=policy))
    lost.wish()
    record = lost.rebuild(10.0)
    other = recipe(2, [0, 1, 3, 4], lost.chain.state_ids, [0.0, 3.0, 2.0, 1.0, 4.0], a_run())
    assert "is not made of" in lost.chain.fits(replace(record, sources=other.sources))


@pytest.mark.parametrize(("stage", "gone"), [(1, {1}), (2, {2, 3}), (4, {4}), (3, {1, 2, 3, 4})])
def test_a_stage_that_is_drawn_anew_has_no_sources_whoever_is_left(stage: int, gone: set[int]) -> None:
    made = recipe(stage, set(range(5)) - gone, list("abcde"), [1.0] * 5, a_run(policy="random"))
    assert (made.sources, made.can_be_made) == ((), True)
    assert not recipe(0, {1, 2, 3, 4}, list("abcde"), [1.0] * 5, a_run(policy="random")).can_be_made
    assert not recipe(3, {0}, list("abcde"), [1.0] * 5, a_run()).can_be_made


@pytest.mark.parametrize("policy", ["random", "checkfree", "copy"])
def test_a_record_is_without_sources_just_where_the_policy_says_so(policy: str) -> None:
    lost = Lost(2, manifest=a_run(policy=policy))
    lost.wish()
    record = lost.rebuild(10.0)
    assert (record.sources == ()) == (policy == "random")
    other = (Source(1, lost.chain.state_ids[1], 1.0),) if policy == "random" else ()
    assert "is not made of" in lost.chain.fits(replace(record, sources=other))
    assert "it makes generation" in lost.chain.fits(replace(record, stage=0, sources=other))


def test_where_stages_are_drawn_anew_stage_0_alone_ends_the_run() -> None:
    lost = Lost(1, 2, 3, 4, manifest=a_run(policy="random"))
    lost.wish()
    assert lost.rebuild(100.0).sources == ()
    assert unmakeable(lost.chain, [LEAD]) == []
    assert unmakeable(Lost(1, 2, 3, 4).chain, [LEAD]) == [1, 2, 3, 4]
    end = Lost(0, 1, manifest=a_run(policy="random"))
    end.next(0.0)
    assert end.next(10.0).is_end


@pytest.mark.parametrize(
    ("policy", "copies"), [("checkfree_plus", 2), ("checkfree", 0), ("copy", 0), ("uniform", 0), ("random", 0)]
)
def test_without_a_word_only_checkfree_plus_keeps_copies_of_stage_0(policy: str, copies: int) -> None:
    assert a_manifest(num_block_stages=4, recovery={"policy": policy}).recovery.embedding_copies == copies


@pytest.mark.parametrize("weighting", ["gradient_norm", "gradient_norm_clipped"])
@pytest.mark.parametrize("squared", [[], [1.0, 0.0, 1.0, 1.0, 1.0], [1.0, math.inf, 1.0, 1.0, 1.0]])
def test_without_a_norm_to_speak_of_both_count_alike_by_distance_and_that_is_said(weighting: str, squared: list[float]) -> None:
    manifest = a_run(weighting=weighting)
    made = recipe(2, {1, 4}, list("abcde"), weights_of(squared, 1, manifest), manifest)
    assert [s.coefficient for s in made.sources] == pytest.approx([2 / 3, 1 / 3])
    assert "uniform: a gradient norm is missing" in made.sentence


def test_a_run_without_a_clip_weighs_by_the_norms_themselves() -> None:
    manifest = a_run(weighting="gradient_norm_clipped")
    free = manifest.model_copy(update={"optimizer": manifest.optimizer.model_copy(update={"clip_norm": 0.0})})
    assert weights_of([0.0, 100.0], 1, free) == [0.0, 10.0 + CLIPPED_EXTRA]


@pytest.mark.parametrize("policy", ["checkfree", "checkfree_plus", "copy", "uniform"])
def test_what_cannot_be_averaged_or_swapped_is_refused_at_the_start(policy: str) -> None:
    blocks = {"num_hidden_layers": 5, "vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1}
    model = blocks | {"num_key_value_heads": 1, "max_position_embeddings": 8}
    with pytest.raises(ValueError, match="makes a stage of others tensor by tensor"):
        a_manifest(num_block_stages=4, policy=policy, model=model, blocks_per_stage=(2, 1, 1, 1))
    for fine in ("none", "random"):
        assert a_manifest(num_block_stages=4, policy=fine, model=model, blocks_per_stage=(2, 1, 1, 1)).blocks_per_stage
    if policy == "checkfree_plus":
        with pytest.raises(ValueError, match="needs num_block_stages >= 4"):
            a_manifest(num_block_stages=3, policy=policy)
    with pytest.raises(ValueError, match="weighting"):
        a_manifest(num_block_stages=4, recovery={"policy": policy, "weighting": "by_faith"})


def adam(beta1: float = 0.9, beta2: float = 0.999, kind: str = "adamw") -> OptimizerSection:
    return OptimizerSection(learning_rate=0.1, beta1=beta1, beta2=beta2, kind=kind)  # type: ignore[arg-type]


def test_averaged_moments_are_corrected_for_the_age_of_each_and_have_the_smallest() -> None:
    made = moment_shares([0.75, 0.25], [1, 3], adam(0.5, 0.5))
    assert made.age == 1
    assert made.first == made.second == pytest.approx((0.75, 0.25 * 0.5 / 0.875))
    expected_gradient = [0.5 * 4.0, 0.875 * 4.0]  # b1^t apart, moments of a gradient that is 4 at each step
    assert sum(s * m for s, m in zip(made.first, expected_gradient, strict=True)) == pytest.approx(0.5 * 4.0)


def test_a_copys_moments_are_its_sources_and_those_of_nobody_are_zero() -> None:
    assert moment_shares([1.0], [7], adam()) == MomentShares(7, (1.0,), (1.0,))
    assert moment_shares([0.5, 0.5], [9, 9], adam()) == MomentShares(9, (0.5, 0.5), (0.5, 0.5))
    assert moment_shares([0.5, 0.5], [0, 9], adam()) == MomentShares(0, (0.0, 0.0), (0.0, 0.0))
    assert moment_shares([0.75, 0.25], [2, 9], adam(kind="sgd")) == MomentShares(2, (0.75, 0.25), (0.75, 0.25))


@given(st.lists(st.floats(0, 1e30), min_size=5, max_size=5), st.integers(1, 4), st.sets(st.integers(0, 4)))
def test_coefficients_are_a_mean(norms: list[float], stage: int, lost: set[int]) -> None:
    manifest = a_run()
    whole = set(range(5)) - lost - {stage}
    made = recipe(stage, whole, list("abcde"), weights_of(norms, 64, manifest), manifest)
    assert {s.stage for s in made.sources} <= whole - {0}
    if made.sources:
        assert sum(s.coefficient for s in made.sources) == pytest.approx(1.0)
        assert all(0.0 <= s.coefficient <= 1.0 for s in made.sources)
    else:
        assert not whole - {0}


# ---- when, and at whom ----


def test_nothing_is_done_while_every_stage_has_its_state() -> None:
    assert Lost().next(0.0) == Next()


def test_a_rebuild_waits_for_the_grace_then_for_a_newcomer() -> None:
    lost = Lost(2)
    assert "may come back for 10 s" in lost.next(0.0).sentence
    lost.wish()
    assert lost.next(9.9).record is None
    record = lost.rebuild(10.0)
    assert record.joins == (Seating(2, NEW, "active", 1),)
    assert [s.stage for s in record.sources] == [1, 3]


def test_a_spare_that_asked_for_the_stage_comes_first_and_one_without_the_memory_never() -> None:
    lost = Lost(2)
    lost.wish(Member("tiny", 1), memory_bytes=1)
    lost.wish(Member("a", 1))
    lost.wish(Member("b", 1), stage=2)
    assert lost.rebuild(10.0).joins[0].member == Member("b", 1)


def test_who_copied_the_stage_when_its_holder_went_takes_it_before_all_others() -> None:
    lost = Lost()
    lost.chain.append(Roster(lost.chain.head, 1, (Seating(2, NEW, "learner"),), (), (LEAD,)), ())
    holder = lost.chain.holders(2)
    lost.chain.append(Roster(lost.chain.head, 1, (), tuple(holder), (LEAD,)), ())
    lost.wish(Member("spare", 1), stage=2)
    lost.view.expect(NEW.peer, 10.0)
    record = lost.rebuild(10.0)
    assert record.joins == (Seating(2, NEW, "active", 1),)
    lost.members.on_leave(NEW, "it goes", 10.0)
    assert lost.rebuild(10.0).joins[0].member == Member("spare", 1)


def test_what_it_was_copying_is_given_up_before_it_makes_the_stage_anew() -> None:
    manifest = a_run()
    learner = Seating(2, NEW, "learner")
    core = Core(manifest, NEW.peer, [*holders(manifest), learner])
    chain = core.state.chain
    commit(chain, manifest)
    leaves = tuple(chain.holders(2))
    core.decide(Roster(chain.head, 1, (), leaves, (LEAD,)))
    sources = sources_of(2, chain, manifest)
    out = core.decide(Rebuild(chain.head, 1, 2, 1, sources, (Seating(2, NEW, "active", 1),), (LEAD,)))
    assert [type(c) for c in out if isinstance(c, DropSeat | Regrow)] == [DropSeat, Regrow]
    assert list(chain.seated(2)) == [Seating(2, NEW, "active", 1)]


def test_a_replica_that_can_be_spared_comes_before_a_second_seat() -> None:
    manifest = a_run()
    lost = Lost(2, manifest=manifest, replicas=1)
    extra = Seating(4, Member("extra", 1), "active")
    lost.chain.append(Roster(lost.chain.head, 1, (extra,), (), (LEAD,)), ())
    assert lost.rebuild(10.0).joins[0].member == extra.member


@pytest.mark.parametrize(("stage", "role"), [(0, "passive"), (3, "learner"), (3, "passive")])
def test_who_came_too_soon_takes_it_in_place_of_its_seat_at_a_stage_that_others_compute(stage: int, role: Role) -> None:
    """A newcomer that was given a seat before the loss was declared: it does not compute yet, and nobody misses it."""
    manifest = a_run(embedding_copies=1)
    lost = Lost(2, manifest=manifest)
    rivals = (Seating(0, Member("p1.0", 1), "passive"), Seating(4, Member("works", 1), "active"))
    soon = Seating(stage, Member("soon", 1), role)
    lost.chain.append(Roster(lost.chain.head, 1, (*rivals, soon), (), (LEAD,)), ())
    record = lost.rebuild(10.0)
    assert [s.member for s in record.joins] == [soon.member]
    lost.decide(record)
    left = lost.members.changes(10.5)
    assert (left.joins, left.leaves) == ((), (soon,))
    apply(lost.chain, left, lost.members)
    assert not lost.members.changes(11.0)


def test_nobody_is_spared_who_is_silent_lacks_the_room_or_is_needed_elsewhere() -> None:
    lost = Lost(2)
    silent, small, wanted = (Seating(3, Member(name, 1), "learner", pinned=name == "wanted") for name in ("a", "b", "wanted"))
    lost.chain.append(Roster(lost.chain.head, 1, (silent, small, wanted), (), (LEAD,)), ())
    lost.recovery.memory["b"] = 1
    lost.view.expect("a", 0.0)
    lost.next(0.0)
    assert "no node can take it yet" in lost.next(14.0).sentence


def test_a_neighbour_takes_a_second_seat_when_nobody_comes() -> None:
    lost = Lost(3)
    lost.recovery.memory |= {"p2.0": 1 << 30, "p4.0": 1 << 33, "lead": 1 << 40}
    lost.next(0.0)
    assert "no node can take it yet" in lost.next(14.9).sentence
    assert lost.rebuild(15.0).joins[0].member == LEAD, "who has most room"


def test_a_holder_that_is_back_with_its_state_is_seated_again_without_any_grace() -> None:
    lost = Lost(2)
    state = lost.chain.state_ids[2]
    lost.wish(Member("p2.0", 1), kept=(Kept(2, "an older one", "d"),))
    assert lost.next(1.0).record is None
    lost.wish(Member("p2.0", 1), kept=(Kept(2, state, "d"),))
    record = lost.next(1.0).record
    assert isinstance(record, Roster)
    assert record.joins == (Seating(2, Member("p2.0", 1), "active", 0),)
    assert lost.chain.fits(record) == ""


def test_without_a_policy_a_lost_stage_is_waited_for() -> None:
    lost = Lost(2, manifest=a_run(policy="none"))
    lost.wish()
    lost.next(0.0)
    waits = "waiting: stage 2 has no holder since step 1; recovery.policy none waits until one that kept its state is back"
    assert lost.next(1e6) == Next(waits)


@pytest.mark.parametrize(
    ("copies", "why"), [(0, "recovery.embedding_copies is 0"), (2, "its copies (recovery.embedding_copies 2)")]
)
def test_stage_0_without_a_copy_is_never_invented_and_ends_the_run(copies: int, why: str) -> None:
    lost = Lost(0, manifest=a_run(embedding_copies=copies))
    lost.wish()
    lost.next(0.0)
    assert "may come back" in lost.next(9.9).sentence
    end = lost.next(10.0)
    assert end.is_end
    assert end.record is None
    assert "the run ends at step 1: stage 0 is lost" in end.sentence
    assert why in end.sentence


def test_a_holder_of_stage_0_that_is_back_in_time_or_at_the_last_moment_saves_the_run() -> None:
    lost = Lost(0)
    state = lost.chain.state_ids[0]
    lost.next(0.0)
    lost.wish(Member("lead", 1), kept=(Kept(0, state, "d"),))
    record = lost.next(1e6).record
    assert isinstance(record, Roster)
    assert lost.chain.fits(record) == ""


def test_block_stages_that_are_all_lost_end_the_run_and_one_that_is_left_does_not() -> None:
    every = Lost(1, 2, 3, 4)
    every.wish()
    every.next(0.0)
    assert every.next(9.9).is_end is False
    assert "all block stages are lost" in every.next(10.0).sentence
    assert every.next(10.0).is_end
    assert Lost(1, 2, 4).rebuild(20.0).stage == 1


def test_without_a_policy_or_a_commit_nothing_ends() -> None:
    for lost in (Lost(0, manifest=a_run(policy="none")), Lost(0, steps=0), Lost(1, 2, 3, 4, steps=0)):
        lost.next(0.0)
        assert not lost.next(1e6).is_end
        assert not lost.next(1e6).record


def test_there_is_a_lapse_for_the_last_word_of_a_newcomer_even_without_grace() -> None:
    lost = Lost(0, manifest=a_run(rebuild_grace_s=0.0))
    lost.next(0.0)
    assert not lost.next(lost.manifest.timing.lapse_s - 0.1).is_end
    assert lost.next(lost.manifest.timing.lapse_s).is_end

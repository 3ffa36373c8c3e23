"""What a learner has to do again: the same updates, with the same numbers, as its donors did."""

from __future__ import annotations

import pytest

from protocol.chain import KEPT_COMMITS, Chain
from protocol.commands import Apply, Compute
from protocol.events import Applied, ComputeDone, Reduced
from protocol.ids import Ballot, Member
from protocol.manifest import Manifest
from protocol.messages import StartReduce
from protocol.records import Commit, Roster, StageResult
from protocol.replays import Replay, replays
from protocol.schedule import gradient_scale, later_lr_factor, learning_rate
from tests.tools.core import BALLOT, Core, a_manifest, holders, of

STAGE = 1


def a_commit(chain: Chain, manifest: Manifest) -> Commit:
    """Its norms depend on step and stage."""
    step = chain.step + 1
    results = tuple(StageResult(s, "sum", 4.0 * step + s) for s in range(manifest.num_stages))
    return Commit(chain.head, step, 1, results, 8.0, manifest.batch.tokens_per_step)


def grown(num_commits: int) -> tuple[Chain, Manifest, list[str]]:
    """A chain with so many commits and a roster between each two, and the stage's states, oldest first."""
    optimizer = {"learning_rate": 0.1, "warmup_steps": 3, "schedule": "cosine", "clip_norm": 0.01, "clip_scope": "per_stage"}
    recovery = {"policy": "none", "lr_factor": 1.1, "lr_factor_decay_steps": 4}
    manifest = a_manifest(optimizer=optimizer, max_steps=100, recovery=recovery)
    me = Member("me", 1)
    chain = Chain(manifest, me)
    states = [chain.state_ids[STAGE]]
    for _ in range(num_commits):
        chain.append(a_commit(chain, manifest), ())
        states.append(chain.state_ids[STAGE])
        chain.append(Roster(chain.head, chain.step, (), (), (me,)), ())
    return chain, manifest, states


def test_the_newest_state_needs_nothing() -> None:
    chain, manifest, states = grown(3)
    assert replays(chain, manifest, STAGE, states[-1], 1.0) == ()


@pytest.mark.parametrize("behind", [1, 2, 5])
def test_updates_come_oldest_first_with_the_numbers_of_their_step(behind: int) -> None:
    chain, manifest, states = grown(6)
    expected, factor = [], 1.1
    for step in range(7 - behind, 7):
        norms = {s: 4.0 * step + s for s in range(manifest.num_stages)}
        scale = gradient_scale(manifest, manifest.batch.tokens_per_step, norms, STAGE)
        rate = learning_rate(manifest.optimizer, step, manifest.last_step) * factor
        factor = later_lr_factor(manifest.recovery, factor)
        expected.append(Replay(states[step], step, scale, rate, factor))
    assert replays(chain, manifest, STAGE, states[6 - behind], 1.1) == tuple(expected)
    assert len({r.gradient_scale for r in expected}) == behind, "the numbers differ from step to step"


def test_what_is_not_connected_leads_nowhere() -> None:
    chain, manifest, states = grown(KEPT_COMMITS + 2)
    assert replays(chain, manifest, STAGE, "elsewhere", 1.0) is None
    assert replays(chain, manifest, STAGE, states[1], 1.0) is None
    assert len(replays(chain, manifest, STAGE, states[2], 1.0) or ()) == KEPT_COMMITS
    assert replays(chain, manifest, 0, states[-2], 1.0) is None, "it is a state of another stage"


def test_a_summary_forgets_what_led_to_it() -> None:
    chain, manifest, states = grown(3)
    other, _, _ = grown(5)
    assert not chain.adopt(other.summary(Ballot(1, "me"), ()))
    assert replays(chain, manifest, STAGE, states[3], 1.0) is None
    assert replays(chain, manifest, STAGE, chain.state_ids[STAGE], 1.0) == ()


def test_a_replay_is_what_a_seat_applies() -> None:
    manifest = a_manifest(recovery={"policy": "none", "lr_factor_decay_steps": 4})
    c = Core(manifest, "p1.0", holders(manifest))
    before = c.state.chain.state_ids[STAGE]
    c.open()
    seat = c.state.bench.seats[STAGE]
    seat.state.lr_factor = 1.1
    for microbatch in range(manifest.batch.num_microbatches):
        for kind in ("forward", "backward"):
            for compute in of(c.arrive(c.header(kind, microbatch, 1)), Compute):
                c.do(ComputeDone(compute.work, c.handle(), 8, 0.0, 0, 0.1))
    c.tell(StartReduce(BALLOT, 1, 1, STAGE, (0,) * manifest.batch.num_microbatches))
    c.do(Reduced(STAGE, 1, 1, "sum", 5.0, 0.1))
    (apply,) = of(c.decide(a_commit(c.state.chain, manifest)), Apply)
    c.do(Applied(STAGE, 1, apply.state_id, "new", 1, 0.1))
    expected = (Replay(apply.state_id, 1, apply.gradient_scale, apply.learning_rate, seat.state.lr_factor),)
    assert seat.state.lr_factor == pytest.approx(1.075)
    assert replays(c.state.chain, manifest, STAGE, before, 1.1) == expected

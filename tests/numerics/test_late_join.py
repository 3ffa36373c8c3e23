"""Nodes that come while a run trains copy their stage from replicas that go on, and train on with the same bits (S3, S6)."""

from __future__ import annotations

from typing import Any

import pytest

from node.sim.swarm import SimNode
from protocol.manifest import Manifest
from tests.numerics.harness import RandomTokens, assert_same, manifest_of, reference_run
from tests.numerics.test_swarm_in_memory import assert_replicas_equal, run_swarm

AFTER = (1, 10, 100)
"""Steps after the newcomer's first own update."""


def commits(node: SimNode, stage: int) -> dict[int, dict[str, Any]]:
    return {line["step"]: line for line in node.lines("committed") if line["stage"] == stage}


def roles(nodes: list[SimNode], peer: str) -> list[str]:
    return [line["role"] for line in nodes[0].lines("joined") if line["peer"] == peer]


def run_with_newcomer(manifest: Manifest, stage: int, copy_rate: float = 10e6) -> tuple[SimNode, SimNode]:
    """(donor, newcomer) of a run whose replicas are equal after every step; a short one also equals the plain loop."""
    trajectory, nodes = run_swarm(manifest, 1, late=[(stage, 1.5)], copy_rate=copy_rate)
    donor, newcomer = nodes[stage], nodes[-1]
    assert roles(nodes, newcomer.state.config.member.peer) == ["learner", "passive", "active"]
    if manifest.last_step <= 40:  # later the rounding of sums in another order shows
        assert_same(trajectory, reference_run(manifest, RandomTokens(manifest)))
    assert_replicas_equal(nodes)
    mine, theirs = newcomer.state.bench.seats[stage].state, donor.state.bench.seats[stage].state
    assert (mine.optimizer_age, mine.lr_factor, mine.digest) == (theirs.optimizer_age, theirs.lr_factor, theirs.digest)
    assert not [line for node in nodes for line in node.lines("digest_mismatch")]
    return donor, newcomer


@pytest.mark.parametrize(("stage", "kind"), [(1, "adamw"), pytest.param(0, "sgd", marks=pytest.mark.full)])
def test_a_newcomer_trains_on_like_its_donor_after_1_10_and_100_steps(stage: int, kind: str) -> None:
    manifest = manifest_of(2, optimizer__kind=kind, max_steps=112, local=False)
    donor, newcomer = run_with_newcomer(manifest, stage)
    mine, theirs = commits(newcomer, stage), commits(donor, stage)
    first = min(mine)
    assert 1 < first < 12, "it came while the run was going"
    for after in AFTER:
        step = first + after
        assert mine[step]["digest"] == theirs[step]["digest"], "weights, moments, optimizer age, and so the rate that led here"
        assert mine[step]["state_id"] == theirs[step]["state_id"]
    assert newcomer.state.bench.seats[stage].state.optimizer_age == manifest.last_step


def test_a_newcomer_whose_copy_takes_many_steps_gets_in() -> None:
    """A stage of 200 kB at 130 kB a second, while a step takes half a second: the swarm waits for it once."""
    manifest = manifest_of(2, max_steps=40, local=False)
    _, newcomer = run_with_newcomer(manifest, 1, copy_rate=1.3e5)
    transfers = newcomer.lines("transfer")
    assert transfers
    assert transfers[-1]["bytes"] > 12 * 17_024, "more came than one state: others went on"

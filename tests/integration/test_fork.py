"""Half of a swarm of real processes sleeps: the other half goes on without a quorum; afterwards both are one swarm again. Half
of one dies, with a stage: the other half makes it again.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from node.demo.process import NodeProcess
from tests.integration.ends import Ending, end_all_at_once
from tests.integration.seen import assert_counted_once
from tests.integration.test_regrow import NUM_MICROBATCHES, a_run, seat_of
from tests.tools.material import write_manifest
from tests.tools.swarm import Swarm, swarm, wait_for

LIMIT_S = 120.0


@pytest.mark.full
@pytest.mark.timeout(420)
def test_two_halves_part_and_become_one_again(tmp_path: Path) -> None:
    """The half that sleeps coordinates, and is a quorum when it wakes: then there are two lineages that train."""
    path = write_manifest(
        tmp_path,
        num_block_stages=1,
        start_replicas=2,
        max_steps=1_000_000,
        batch__global_samples=16,
        evaluation__every_steps=0,
        timing__heartbeat_s=0.5,
        timing__lapse_heartbeats=8,
        timing__lease_s=9.0,
        recovery__policy="none",
        recovery__rebuild_grace_s=1.0,
    )
    with swarm(tmp_path) as made:
        made.launch(path, num_block_stages=1, replicas=2)
        named = {node.name: node for node in made.nodes}
        asleep, awake = [named["s0r0"], named["s1r1"]], [named["s0r1"], named["s1r0"]]
        made.wait_step(3, LIMIT_S)
        for node in asleep:
            node.send(signal.SIGSTOP)
        for node in awake:
            wait_for("it goes on", lambda node=node: made.events(node, "forked"), LIMIT_S, made.situation)
        [one], [other] = (made.events(node, "forked") for node in awake)
        assert one["record"] == other["record"]
        assert sorted(one["peers"]) == sorted(made.running(node).peer for node in awake)
        made.wait_step(one["step"] + 3, LIMIT_S, awake[0])
        for node in asleep:
            node.send(signal.SIGCONT)
        wait_for("it is one swarm again", lambda: is_one(made), LIMIT_S, made.situation)
        gave_way = [node for node in made.nodes if has_given_way(made, node)]
        assert gave_way in (asleep, sorted(awake, key=made.nodes.index)), "one half gave way, and all of it"
        after = max(made.status(node)["step"] for node in made.nodes) + 3
        for node in made.nodes:
            made.wait_step(after, LIMIT_S, node)
        wait_for("it stays one", lambda: is_one(made), LIMIT_S, made.situation)
        assert len([node for node in made.nodes if made.events(node, "forked")]) == 2, "nobody parted again"
        assert end_all_at_once(made.nodes) == [0, 0, 0, 0]
        assert_one_digest_per_state(made)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_half_dies_with_a_stage_and_the_other_half_goes_on(tmp_path: Path) -> None:
    """Stage 0, which coordinates, and stage 2, with half of the voters: no quorum is left, but a source for every stage."""
    more = {"recovery__policy": "checkfree", "recovery__embedding_copies": 2, "recovery__newcomer_wait_s": 0.0}
    with swarm(tmp_path) as made:
        nodes = made.launch(a_run(tmp_path, 3, **more), num_block_stages=3)
        left = [nodes[1], nodes[3]]
        made.wait_step(3, LIMIT_S)
        endings = [Ending(node) for node in (nodes[0], nodes[2])]
        for ending in endings:
            ending.send(signal.SIGKILL)
        for ending in endings:
            ending.check()
        before = max(event["step"] for node in left for event in made.events(node, "loss"))
        for node in left:
            made.wait_step(before + 5, LIMIT_S, node)
        [one], [other] = (made.events(node, "forked") for node in left)
        assert one["record"] == other["record"]
        assert sorted(one["peers"]) == sorted(made.running(node).peer for node in left)
        [again] = filter(None, (seat_of(made, node, 2) for node in left))
        assert [source["stage"] for source in again["provenance"]["sources"]] == [1, 3], "made by those that were left"
        assert end_all_at_once(left) == [0, 0]
        assert_counted_once({made.running(node).peer: made.events(node) for node in made.nodes}, NUM_MICROBATCHES)
        assert_one_digest_per_state(made)


def is_one(made: Swarm) -> bool:
    """Everybody has a seat that is no learner's, and follows one coordinator."""
    told = [made.status(node) for node in made.nodes]
    seats = [{seat["role"] for seat in status.get("seats", ())} for status in told]
    ballots = {tuple(status.get("ballot", ())) for status in told}
    return len(ballots) == 1 and all(roles & {"active", "passive"} for roles in seats) and all(_roster(x) == 4 for x in told)


def has_given_way(made: Swarm, node: NodeProcess) -> bool:
    """It joined the other lineage; or, as it decided nothing while it slept, it found itself off the roster."""
    peer = made.running(node).peer
    off = any(event.get("peer", peer) == peer for event in made.events(node, "left"))
    return off or bool(made.events(node, "yielded"))


def _roster(status: dict[str, list[dict[str, str]]]) -> int:
    return len({row["peer"] for row in status.get("roster", ()) if row["role"] != "learner"})


def assert_one_digest_per_state(made: Swarm) -> None:
    """In whichever lineage it came to be."""
    digest: dict[str, str] = {}
    nodes: list[NodeProcess] = made.nodes
    for node in nodes:
        for event in made.events(node, "committed"):
            assert digest.setdefault(event["state_id"], event["digest"]) == event["digest"]
    assert len(digest) > 10

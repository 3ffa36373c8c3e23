"""The only holder of a middle stage is killed in a swarm of real processes, and what the newcomer is given is recomputed from
`regrow debug dump`s: of all stages before the last committed step, of the neighbours after it, of the rebuilt stage before its
first commit.

The organiser's orders make the run stand still where it is looked at: a lost stage is rebuilt in a paused run too.
"""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from node import http_client
from node.data.files import BlobFiles
from node.data.store import open_token_store
from node.demo.process import NodeProcess
from protocol.manifest import Manifest
from tests.integration.ends import Ending
from tests.integration.test_numerics_over_grpc import NUM_BLOCK_STAGES, real_manifest
from tests.numerics.harness import drawn_weights
from tests.numerics.rebuilt import Arrays, assert_rebuilt, expected, gradient_norms
from tests.tools.command import regrow
from tests.tools.organiser import Organiser
from tests.tools.swarm import Swarm, swarm, wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
LIMIT_S = 90.0
LOST = 2
NEIGHBOURS = (1, 3)
MAX_TRIES = 20


def dump(made: Swarm, node: NodeProcess, stage: int) -> Arrays:
    """As the command writes it."""
    out = node.state_dir / f"stage{stage}.safetensors"
    ended = regrow("debug", "dump", "--state-dir", node.state_dir, "--stage", stage, "--out", out)
    assert ended.code == 0, f"{ended.err}\n{made.situation()}"
    return dict(load(out.read_bytes()))


def dumps(made: Swarm) -> Arrays:
    """Of all stages, by the request that the command makes."""
    read = [http_client.get(made.running(node).http, f"/debug/dump?stage={stage}") for stage, node in enumerate(made.nodes)]
    return {name: array for data in read for name, array in load(data).items()}


def one_step(made: Swarm, organiser: Organiser) -> tuple[Arrays, int]:
    """(weights of all stages before the last committed step, that step) of a run that is paused after it."""
    organiser.order("pause")
    before = organiser.paused()
    for _ in range(MAX_TRIES):
        weights = dumps(made)
        organiser.order("resume", "pause")
        step = organiser.paused(after=before)
        if step == before + 1:
            return weights, step
        before = step
    raise AssertionError(f"more than one step in each of {MAX_TRIES} tries")


def shares_by(policy: str, manifest: Manifest, before: Arrays, step: int, folder: Path) -> dict[int, float]:
    """What the neighbours' weights are multiplied with; by the norms of that step's gradients where the policy says so."""
    if policy == "copy":
        return {NEIGHBOURS[0]: 1.0}
    if policy == "uniform":
        return dict.fromkeys(NEIGHBOURS, 0.5)
    store = open_token_store(manifest, BlobFiles(folder / "cache"))
    microbatches: list[np.ndarray] = [store.microbatch(step, m) for m in range(manifest.batch.num_microbatches)]
    norms = gradient_norms(manifest, before, microbatches)
    return {stage: norms[stage] / sum(norms[s] for s in NEIGHBOURS) for stage in NEIGHBOURS}


@pytest.mark.parametrize("policy", ["checkfree_plus", "copy", "uniform", "random"])
def test_what_a_newcomer_is_given_is_what_numpy_makes_of_the_neighbours_dumps(tmp_path: Path, policy: str) -> None:
    manifest, path = real_manifest(
        tmp_path,
        max_steps=10_000,
        optimizer__warmup_steps=0,
        recovery={"policy": policy, "rebuild_grace_s": 0.0, "newcomer_wait_s": 600.0},
    )
    with swarm(tmp_path) as made:
        nodes = list(made.launch(path, NUM_BLOCK_STAGES))
        made.wait_step(3, LIMIT_S)
        before, step = one_step(made, Organiser(made))
        after = {name: array for stage in NEIGHBOURS for name, array in dump(made, nodes[stage], stage).items()}
        ending = Ending(nodes[LOST])
        ending.send(signal.SIGKILL)
        ending.check()
        newcomer = made.join(made.running(nodes[0]).invite, name="newcomer")
        rebuilt = wait_for("it is rebuilt", lambda: made.events(newcomer, "provenance"), LIMIT_S, made.situation)[0]
        seat = made.status(newcomer)["seats"][0]
        assert (seat["stage"], seat["step"], seat["state_id"]) == (LOST, step, rebuilt["state_id"]), "no commit since"
        given = dump(made, newcomer, LOST)
        decided = made.events(nodes[0], "rebuild")[-1]

    assert (decided["policy"], rebuilt["rung"]) == (policy, "recovery")
    if policy == "random":
        assert decided["sources"] == rebuilt["sources"] == []
        assert_rebuilt(given, drawn_weights(manifest, LOST, generation=1))
        return
    shares = shares_by(policy, manifest, before, step, tmp_path)
    assert {s["stage"]: s["coefficient"] for s in decided["sources"]} == pytest.approx(shares, rel=1e-6)
    worst = assert_rebuilt(given, expected(manifest, LOST, shares, after))
    print(f"step {step}, stage {LOST} of {shares}: {worst:.1e}")

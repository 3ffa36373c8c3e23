"""A rebuilt stage trains with a learning rate of its own for a while: what each update did to its weights shows the factor, and
a newcomer to the stage, which replays updates of that time, goes on with the same one."""

from __future__ import annotations

import numpy as np
import pytest

from node.sim.loop import run_virtual
from node.sim.swarm import MemorySwarm, SimNode
from node.stage.executor import TorchExecutor
from protocol.manifest import Manifest
from tests.numerics import reference
from tests.numerics.harness import RandomTokens, manifest_of, plan_of
from tests.numerics.rebuilt import Arrays, names_of
from tests.numerics.test_rebuilt import LAST, Dumps
from tests.numerics.test_swarm_in_memory import assert_replicas_equal

LOST = 2
FACTOR, DECAY = 1.5, 20
REBUILT_AT_S, LATE_AT_S = 20.0, 20.6
RATE = 0.05


def a_run() -> tuple[Manifest, Dumps, list[SimNode]]:
    """Stage `LOST` dies after step `LAST` and is rebuilt at node 4; node 5 comes to it while its factor falls."""
    manifest = manifest_of(
        3,
        model__num_hidden_layers=3,
        max_steps=LAST + DECAY + 4,
        optimizer={"kind": "sgd", "learning_rate": RATE, "beta1": 0.0, "clip_norm": 0.0},
        recovery={
            "policy": "checkfree",
            "lr_factor": FACTOR,
            "lr_factor_decay_steps": DECAY,
            "rebuild_grace_s": 0.0,
            "newcomer_wait_s": 600.0,
        },
    )
    tokens, dumps = RandomTokens(manifest), Dumps((LOST,))
    swarm = MemorySwarm(
        manifest,
        [0, 1, 2, 3, -1, LOST],
        lambda _: TorchExecutor(manifest, tokens, inline=True),
        joins_at={4: REBUILT_AT_S, 5: LATE_AT_S},
        copy_rate=3e5,
        watch=dumps.watch,
    )
    dumps.kill = swarm.kill
    return manifest, dumps, run_virtual(swarm.run())


def factor_of(manifest: Manifest, before: Arrays, after: Arrays, step: int) -> float:
    """How many times `RATE` x the gradient of a plain backward pass the weights of the stage went down."""
    microbatches = [RandomTokens(manifest).microbatch(step, m) for m in range(manifest.batch.num_microbatches)]
    gradients = reference.gradients(plan_of(manifest), before, microbatches)
    names = names_of(manifest, LOST)
    went = np.concatenate([(before[n].astype(np.float64) - after[n]).ravel() for n in names])
    slope = np.concatenate([gradients[n].astype(np.float64).ravel() for n in names])
    return float(went @ slope / (slope @ slope) / RATE)


def test_the_factor_falls_with_each_update_and_a_late_newcomer_has_the_same() -> None:
    manifest, dumps, nodes = a_run()
    done = {step: dumps.weights(manifest, step) for step in range(LAST, manifest.last_step + 1)}
    done[LAST] = done[LAST] | dumps.made[LOST]
    for k in (0, 1, DECAY // 2, DECAY - 1, DECAY, DECAY + 2):
        factor = factor_of(manifest, done[LAST + k], done[LAST + k + 1], LAST + k + 1)
        assert factor == pytest.approx(1.0 + (FACTOR - 1.0) * max(0, DECAY - k) / DECAY, abs=2e-3), f"update {k + 1}"
    rebuilt, late = nodes[4], nodes[5]
    first = min(line["step"] for line in late.lines("committed"))
    assert LAST + 1 < first < LAST + DECAY, "it came while the factor fell"
    assert assert_replicas_equal([rebuilt, late]) >= manifest.last_step - first
    assert rebuilt.state.bench.seats[LOST].state.lr_factor == late.state.bench.seats[LOST].state.lr_factor == 1.0
    assert not [line for node in nodes for line in node.lines("digest_mismatch")]

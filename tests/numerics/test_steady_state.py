"""What being ready for a loss costs while nothing is lost: bytes by kind, of whole runs on virtual time with torch. Payloads
are compared exactly; heartbeats and what is repeated with them follow the clock."""

from __future__ import annotations

from collections import Counter

import pytest

from node.sim.loop import run_virtual
from node.sim.swarm import MemorySwarm, SimNode
from node.stage.executor import TorchExecutor
from node.transport.config import Direction, Hooks, Kind
from protocol.manifest import Manifest
from protocol.sizes import stage_parameters
from tests.numerics.harness import RandomTokens, manifest_of

NUM_BLOCK_STAGES, STEPS = 4, 6
PAYLOADS = ("forward", "backward", "reduce")
OFF = {"policy": "none"}
FREE = {"policy": "checkfree"}
PLUS = {"policy": "checkfree_plus"}
BYTES_PER_ELEMENT = {"f32": 4, "bf16": 2}


def run(replicas: int, recovery: dict[str, object], codec: str) -> tuple[Manifest, dict[str, Counter[str]]]:
    """Bytes "out" and "in" by kind, of all nodes, from the first word to the last."""
    manifest = manifest_of(
        NUM_BLOCK_STAGES, max_steps=STEPS, start_replicas=replicas, recovery=recovery, wire={"gradients": codec}
    )
    counted: dict[str, Counter[str]] = {"out": Counter(), "in": Counter()}

    def on_bytes(kind: Kind, direction: Direction, num_bytes: int) -> None:
        counted[direction][kind] += num_bytes

    swarm = MemorySwarm(
        manifest,
        [stage for _ in range(replicas) for stage in range(manifest.num_stages)],
        lambda _: TorchExecutor(manifest, RandomTokens(manifest), inline=True),
        hooks=Hooks(on_bytes=on_bytes),
    )
    assert_quiet(run_virtual(swarm.run()))
    return manifest, counted


def assert_quiet(nodes: list[SimNode]) -> None:
    """Nothing was lost, tried again or copied."""
    assert all(node.exit and node.exit.code == 0 for node in nodes)
    noisy = {line["type"] for node in nodes for line in node.sink.lines} & {"voided", "lost", "transfer", "left"}
    assert not noisy
    assert nodes[0].state.chain.step == STEPS


@pytest.mark.parametrize(
    ("replicas", "codec"),
    [(1, "f32"), pytest.param(2, "f32", marks=pytest.mark.full), pytest.param(2, "bf16", marks=pytest.mark.full)],
)
def test_checkfree_costs_nothing_and_checkfree_plus_the_sums_for_its_copies(replicas: int, codec: str) -> None:
    manifest, off = run(replicas, OFF, codec)
    _, free = run(replicas, FREE, codec)
    _, plus = run(replicas, PLUS, codec)
    for direction in ("out", "in"):
        assert {kind: free[direction][kind] for kind in PAYLOADS} == {kind: off[direction][kind] for kind in PAYLOADS}
        assert set(free[direction]) == set(off[direction]), "nothing of another kind"
        assert off[direction]["forward"] == off[direction]["backward"] > 0
        assert bool(off[direction]["reduce"]) == (replicas > 1)
    more = {kind: plus["out"][kind] - off["out"][kind] for kind in plus["out"]}
    copies = manifest_of(NUM_BLOCK_STAGES, recovery=PLUS).recovery.embedding_copies
    assert copies == 2
    embedding = BYTES_PER_ELEMENT[codec] * stage_parameters(manifest, 0)
    assert {kind: more[kind] for kind in PAYLOADS} == {"forward": 0, "backward": 0, "reduce": copies * embedding * STEPS}
    assert set(plus["out"]) <= {*PAYLOADS, "control", "heartbeat"}, "and nothing of another kind"
    print(f"{replicas} x {NUM_BLOCK_STAGES + 1} stages, {codec}: per step {off['out'].total() // STEPS}, more by {more}")

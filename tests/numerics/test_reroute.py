"""A step in the middle of which a replica dies, or cannot be reached by a neighbour, has the result of the undisturbed one.

Stages that keep their replicas sum the same numbers in the same order: their gradient is the same to the bit. Where work
changed hands the same summands come in another order: equal up to rounding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from node.sim.loop import run_virtual
from node.sim.network import Cut
from node.sim.swarm import MemorySwarm, SimNode
from node.stage.executor import TorchExecutor
from protocol.events import ComputeDone, Event, MessageReceived
from protocol.manifest import Manifest
from protocol.messages import StartReduce
from tests.numerics.harness import RandomTokens, Trajectory, assert_same, at_once, manifest_of, reference_run, split_flat
from tests.numerics.test_swarm_in_memory import global_norms

AT_STEP, STAGE = 1, 1
"""In the first step shares do not depend on measured speeds yet: so the undisturbed run has the same ones."""


@dataclass
class Fault:
    """Strikes when a replica of `STAGE` has done `op` of so many microbatches of `AT_STEP`, or (`sum`) is told to sum; `strike`
    is told which."""

    op: str
    after: int
    strike: Callable[[MemorySwarm, SimNode], None] = lambda _swarm, _node: None
    done: dict[str, int] = field(default_factory=dict)
    struck: list[SimNode] = field(default_factory=list)

    def watch(self, node: SimNode, event: Event, swarm: MemorySwarm) -> None:
        if _what(event) != (STAGE, AT_STEP, self.op):
            return
        peer = node.state.config.member.peer
        self.done[peer] = self.done.get(peer, 0) + 1
        if not self.struck and self.done[peer] == self.after:
            self.struck.append(node)
            self.strike(swarm, node)


def _what(event: Event) -> tuple[int, int, str] | None:
    """(stage, step, what is done or begins)"""
    if isinstance(event, ComputeDone):
        return event.work.stage, event.work.step, event.work.op
    if isinstance(event, MessageReceived) and isinstance(event.message, StartReduce):
        return event.message.stage, event.message.step, "sum"
    return None


def kill(swarm: MemorySwarm, node: SimNode) -> None:
    swarm.kill(node)


def cut_off(swarm: MemorySwarm, node: SimNode) -> None:
    """From the replicas of the next stage, who live."""
    now = asyncio.get_running_loop().time()
    for other in swarm.nodes:
        if other.state.config.wished_stage == STAGE + 1:
            ends = (frozenset({x.state.config.member.peer}) for x in (node, other))
            swarm.weather.cuts.append(Cut(*ends, now, now + 60.0))


def run(manifest: Manifest, fault: Fault) -> tuple[Trajectory, list[SimNode]]:
    """Two replicas of each stage; weights are those of the survivors."""
    tokens, weights = RandomTokens(manifest), {}

    async def collect(node: SimNode) -> None:
        for stage in node.state.bench.seats:
            parameters = node.executor.parameters(stage)
            count = sum(int(np.prod(shape)) for _, shape in parameters)
            flat = np.frombuffer(at_once(node.executor.export(stage, "weights", 0, count)), dtype="<f4")
            for name, array in split_flat(parameters, flat).items():
                weights.setdefault(name, array)

    wishes = [stage for _ in range(2) for stage in range(manifest.num_stages)]
    swarm = MemorySwarm(manifest, wishes, lambda _: TorchExecutor(manifest, tokens, inline=True), at_end=collect)
    swarm.watch = lambda node, event: fault.watch(node, event, swarm)
    nodes = run_virtual(swarm.run())
    assert fault.struck, "the fault did not strike"
    alive = [n for n in nodes if not n.killed]
    assert [n.exit.code for n in alive if n.exit] == [0] * len(alive)
    assert all(n.pool.num_live == 0 for n in alive), "payload handles are left"
    losses = [line["value"] for line in alive[0].lines("loss")]
    return Trajectory(losses, global_norms(manifest, alive), weights), alive


def a_run() -> Manifest:
    return manifest_of(2, start_replicas=2, max_steps=3, batch__global_samples=16)


def digests(nodes: list[SimNode]) -> dict[int, str]:
    """Of the gradient sums of the struck step, by stage."""
    return {line["stage"]: line["digest"] for n in nodes for line in n.lines("reduced") if line["step"] == AT_STEP}


@pytest.fixture(scope="module")
def undisturbed() -> tuple[Trajectory, dict[int, str]]:
    found, nodes = run(a_run(), Fault("forward", 1))
    return found, digests(nodes)


EVERY_TIME = [("backward", 2, kill), ("forward", 2, cut_off), ("sum", 1, kill)]
MOMENTS = [("forward", 1, kill), ("forward", 1, cut_off), ("forward", 4, kill), ("backward", 1, kill), ("backward", 2, cut_off)]


@pytest.mark.parametrize(
    ("op", "after", "strike"),
    [*EVERY_TIME, *(pytest.param(*moment, marks=pytest.mark.full) for moment in MOMENTS)],
)
def test_the_step_equals_the_undisturbed_one(
    op: str, after: int, strike: Callable[[MemorySwarm, SimNode], None], undisturbed: tuple[Trajectory, dict[int, str]]
) -> None:
    manifest = a_run()
    found, nodes = run(manifest, Fault(op, after, strike))
    assert not [line for n in nodes for line in n.lines("voided")], "nothing is computed again but what was lost"
    rerouted = [line for n in nodes for line in n.lines("rerouted")]
    assert {line["excluded"] for line in rerouted} == {strike is kill}
    assert_same(found, undisturbed[0])
    assert_same(found, reference_run(manifest, RandomTokens(manifest)))
    same = {s for s, digest in digests(nodes).items() if digest == undisturbed[1][s]}
    assert same >= {0, 2}, "stages that lost nobody sum the same bits"

"""The only holder of a stage goes in order, on the real runtime, with torch, on virtual time: whoever goes on with its stage
has the very bits of a run in which nobody went."""

from __future__ import annotations

import pytest

from node.sim.loop import run_virtual
from node.sim.swarm import MemorySwarm, SimNode
from node.stage.executor import TorchExecutor
from protocol.events import Applied, Event
from protocol.manifest import Manifest
from protocol.sizes import need_bytes, passive_bytes, state_bytes
from tests.numerics.harness import RandomTokens, manifest_of

NUM_BLOCK_STAGES = 4
LEFT, LEFT_AT = 2, 5
COMES_AT_S = 20.0

Digests = dict[tuple[int, int], set[str]]
"""By (stage, step)."""


def a_run() -> Manifest:
    recovery = {"policy": "checkfree", "rebuild_grace_s": 60.0}
    return manifest_of(NUM_BLOCK_STAGES, max_steps=10, optimizer__clip_norm=0.05, recovery=recovery)


def train(manifest: Manifest, leaves: bool = False, room: bool = True, comes: bool = False) -> tuple[Digests, list[SimNode]]:
    """`room`: the others have the memory to compute one stage more, else only to keep it. `comes`: a newcomer, later on."""
    tokens = RandomTokens(manifest)
    wishes = [*range(manifest.num_stages), *[-1] * comes]
    swarm = MemorySwarm(manifest, wishes, lambda _: TorchExecutor(manifest, tokens, inline=True))
    swarm.joins_at = {manifest.num_stages: COMES_AT_S}
    for stage in range(manifest.num_stages) if not room else ():
        copy = passive_bytes(manifest) if stage in (1, NUM_BLOCK_STAGES) else 0
        swarm.memory_bytes[stage] = need_bytes(manifest, stage) + copy + state_bytes(manifest, LEFT)

    def watch(node: SimNode, event: Event) -> None:
        mine = node.state.config.wished_stage == LEFT
        if leaves and mine and isinstance(event, Applied) and event.step == LEFT_AT:
            swarm.leave(node)

    swarm.watch = watch
    nodes = run_virtual(swarm.run())
    assert [n.exit.code for n in nodes if n.exit] == [0] * len(wishes)
    found: Digests = {}
    for line in (line for n in nodes for line in n.lines("committed")):
        found.setdefault((line["stage"], line["step"]), set()).add(line["digest"])
    return found, nodes


@pytest.fixture(scope="module")
def undisturbed() -> Digests:
    """What a run computes in which nobody goes."""
    found, _ = train(a_run())
    assert len(found) == (NUM_BLOCK_STAGES + 1) * 10
    return found


def seats(nodes: list[SimNode]) -> list[tuple[str, str]]:
    """(peer, role) of all seats of the stage that are granted in the run, in order."""
    return [(line["peer"], line["role"]) for line in nodes[0].lines("joined") if line["stage"] == LEFT]


def test_a_neighbour_with_room_goes_on_with_it(undisturbed: Digests) -> None:
    found, nodes = train(a_run(), leaves=True)
    assert found == undisturbed
    assert seats(nodes) == [("peer002", "active"), ("peer001", "learner"), ("peer001", "active")]


def test_a_neighbour_without_room_keeps_it_until_a_newcomer_goes_on_with_it(undisturbed: Digests) -> None:
    found, nodes = train(a_run(), leaves=True, room=False, comes=True)
    assert found == undisturbed
    keeper = seats(nodes)[1][0]
    assert seats(nodes)[1:] == [(keeper, "learner"), (keeper, "parked"), ("peer005", "learner"), ("peer005", "active")]
    assert [(line["stage"], line["rung"]) for line in nodes[0].lines("recovered")] == [(LEFT, "parked")]
    newcomer = nodes[-1].lines("transfer")
    assert [line["from"] for line in newcomer] == [[keeper]]

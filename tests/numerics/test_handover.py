"""The only holder of a stage goes in order, on the real runtime, with torch, on virtual time: whoever goes on with its stage
has the very bits of a run in which nobody went."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from node.learning import Learner
from node.sim.loop import run_virtual
from node.sim.swarm import MemorySwarm, SimNode
from node.stage.executor import TorchExecutor
from protocol.events import Applied, Event, Learned
from protocol.manifest import Manifest
from protocol.sizes import need_bytes, passive_bytes, stage_parameters, state_bytes
from tests.numerics.harness import RandomTokens, at_once, manifest_of

NUM_BLOCK_STAGES = 4
LEFT, LEFT_AT = 2, 5
COMES_AT_S = 20.0

Digests = dict[tuple[int, int], set[str]]
"""By (stage, step)."""


def a_run() -> Manifest:
    recovery = {"policy": "checkfree", "embedding_copies": 2, "rebuild_grace_s": 60.0}
    return manifest_of(NUM_BLOCK_STAGES, max_steps=10, optimizer__clip_norm=0.05, recovery=recovery)


def train(
    manifest: Manifest,
    leaves: bool = False,
    room: bool = True,
    comes: bool = False,
    copy_rate: float = 10e6,
    look: Callable[[SimNode, Event], None] = lambda _node, _event: None,
) -> tuple[Digests, list[SimNode]]:
    """`room`: the others have the memory to compute one stage more, else only to keep it. `comes`: a newcomer, later on."""
    tokens = RandomTokens(manifest)
    wishes = [*range(manifest.num_stages), *[-1] * comes]
    swarm = MemorySwarm(manifest, wishes, lambda _: TorchExecutor(manifest, tokens, inline=True), copy_rate=copy_rate)
    swarm.joins_at = {manifest.num_stages: COMES_AT_S}
    for stage in range(manifest.num_stages) if not room else ():
        copy = passive_bytes(manifest) if stage in (1, NUM_BLOCK_STAGES) else 0
        swarm.memory_bytes[stage] = need_bytes(manifest, stage) + copy + state_bytes(manifest, LEFT)

    def watch(node: SimNode, event: Event) -> None:
        look(node, event)
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


def in_small_ranges(*args: Any) -> Learner:
    """A learner whose copy of a small stage is measured on the way."""
    return Learner(*args[:6], range_elements=256)


def test_a_leaver_without_the_time_for_its_whole_state_hands_over_the_weights_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.runtime.Learner", in_small_ranges)
    recovery = {"policy": "checkfree", "embedding_copies": 2, "rebuild_grace_s": 60.0}
    manifest = manifest_of(NUM_BLOCK_STAGES, max_steps=10, timing__leave_notice_s=12.0, recovery=recovery)
    dumps: dict[str, dict[str, Any]] = {}

    def look(node: SimNode, event: Event) -> None:
        if isinstance(event, Applied | Learned) and event.stage == LEFT and event.step == LEFT_AT:
            sections = ("weights", "exp_avg", "exp_avg_sq")
            count = stage_parameters(manifest, LEFT)
            found = {s: np.frombuffer(at_once(node.executor.export(LEFT, s, 0, count)), dtype="<f4").copy() for s in sections}
            dumps[type(event).__name__] = found

    _, nodes = train(manifest, leaves=True, copy_rate=state_bytes(manifest, LEFT) / 20.0, look=look)
    before, after = dumps["Applied"], dumps["Learned"]
    assert np.array_equal(after["weights"], before["weights"])
    assert before["exp_avg"].any()
    assert not after["exp_avg"].any()
    assert not after["exp_avg_sq"].any()
    rebuilt = nodes[0].lines("rebuild")
    assert [(line["stage"], line["generation"], [s["stage"] for s in line["sources"]]) for line in rebuilt] == [
        (LEFT, 1, [LEFT])
    ]
    heir = next(n for n in nodes if n.lines("transfer"))
    assert heir.lines("transfer")[-1]["bytes"] == 4 * stage_parameters(manifest, LEFT)
    assert "lost" not in {line["type"] for n in nodes for line in n.sink.lines}
    assert heir.state.chain.step == manifest.last_step

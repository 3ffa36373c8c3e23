"""A monitor of two hundred nodes: what one scrape holds. How long it takes is told, not judged: that is the machine's."""

from __future__ import annotations

import json
import time

from node.metrics import Metrics
from node.monitor.metrics import MAX_SERIES
from node.monitor.observer import Observer
from node.transport.config import ObserveRequest
from protocol.counted import Tree, show
from protocol.ids import Member
from protocol.records import Share
from tests.tools.clock import StepClock
from tests.tools.core import a_manifest
from tests.tools.monitor import samples_of
from tests.tools.told import status
from tests.unit.test_monitor_observer import DIGEST, World

NUM_NODES = 200
PER_NODE = {
    "regrow_swarm_node_step",
    "regrow_swarm_node_share",
    "regrow_swarm_clock_offset_seconds",
    "regrow_swarm_node_starts_total",
    "regrow_swarm_node_tokens_total",
}
OF_THE_MONITOR = ("regrow_monitor_",)


async def test_a_scrape_of_two_hundred_nodes() -> None:
    world = World(NUM_NODES)
    world.text = Metrics(StepClock(), "aa").render("", status("aa"))[0].decode()
    manifest = a_manifest(microbatches=128)
    world.observer = Observer((manifest.run_id, DIGEST), world.read, world, world.clock, world.metrics, world.probe)
    world.changes = {"contribution": {"steps": 9, "tokens": 77, "share": 0.005}, "run_id": manifest.run_id}
    shares = tuple(Share(s, Member(peer, 1), f"{1 << n // 3:x}") for n, (s, peer, _) in enumerate(world.roster))
    tree = Tree(shares, 1, manifest)

    def proofs(peer: str, _: ObserveRequest) -> bytes:
        own = next(share for share in shares if share.member.peer == peer)
        claim = show(own.member, [s for s in shares if s.stage == own.stage], tree.above(own.stage), 1, manifest)
        return json.dumps({"claims": [claim.text()], "roots": [[1, tree.root]]}).encode()

    world.proofs = proofs
    await world.go_on()
    began = time.perf_counter()
    body, _ = world.metrics.render()
    seconds = time.perf_counter() - began
    samples = samples_of(body.decode())
    for name in PER_NODE:
        assert len({labels for sample, labels in samples if sample == name}) == NUM_NODES, name
    assert samples["regrow_swarm_nodes", (("state", "live"),)] == NUM_NODES
    assert samples["regrow_swarm_leases", (("state", "seated"),)] == NUM_NODES
    assert sum(samples[key] for key in samples if key[0] == "regrow_swarm_node_tokens_total") == NUM_NODES * 8
    replicas = sum(samples[key] for key in samples if key[0] == "regrow_swarm_replicas" and ("role", "active") in key[1])
    assert replicas == NUM_NODES
    swarm = [key for key in samples if not key[0].startswith(OF_THE_MONITOR)]
    assert len(PER_NODE) * NUM_NODES < len(swarm) < len(PER_NODE) * NUM_NODES + 60
    assert len(swarm) < MAX_SERIES / 10
    assert samples["regrow_swarm_series_dropped_total", ()] == 0
    assert len(world.observer.targets("mon:1")) == NUM_NODES
    print(f"{len(samples)} samples of {NUM_NODES} nodes in {1000 * seconds:.1f} ms")

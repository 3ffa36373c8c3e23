"""A monitor of two hundred nodes: what one scrape holds. How long it takes is told, not judged: that is the machine's."""

from __future__ import annotations

import time

from node.metrics import Metrics
from node.monitor.metrics import MAX_SERIES
from tests.tools.clock import StepClock
from tests.tools.monitor import samples_of
from tests.tools.told import status
from tests.unit.test_monitor_observer import World

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
    own = {"steps": 9, "tokens": 77, "share": 0.005, "stages": [{"stage": 1, "tokens": 77}]}
    world.changes = {"contribution": own}
    await world.go_on()
    began = time.perf_counter()
    body, _ = world.metrics.render()
    seconds = time.perf_counter() - began
    samples = samples_of(body.decode())
    for name in PER_NODE:
        assert len({labels for sample, labels in samples if sample == name}) == NUM_NODES, name
    assert samples["regrow_swarm_nodes", (("state", "live"),)] == NUM_NODES
    assert samples["regrow_swarm_leases", (("state", "seated"),)] == NUM_NODES
    assert sum(samples[key] for key in samples if key[0] == "regrow_swarm_node_tokens_total") == NUM_NODES * 77
    replicas = sum(samples[key] for key in samples if key[0] == "regrow_swarm_replicas" and ("role", "active") in key[1])
    assert replicas == NUM_NODES
    swarm = [key for key in samples if not key[0].startswith(OF_THE_MONITOR)]
    assert len(PER_NODE) * NUM_NODES < len(swarm) < len(PER_NODE) * NUM_NODES + 60
    assert len(swarm) < MAX_SERIES / 10
    assert samples["regrow_swarm_series_dropped_total", ()] == 0
    assert len(world.observer.targets("mon:1")) == NUM_NODES
    print(f"{len(samples)} samples of {NUM_NODES} nodes in {1000 * seconds:.1f} ms")

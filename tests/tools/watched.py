"""A real swarm, watched by a monitor and a real Prometheus while a stage's only holder is killed and a newcomer takes over."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.demo.process import NodeProcess
from tests.tools.material import write_manifest
from tests.tools.monitor import Watcher, monitoring
from tests.tools.prometheus_server import Prometheus, prometheus
from tests.tools.swarm import Swarm, swarm, wait_for

LIMIT_S = 120.0
BLOCK_STAGES = 3
LOST = 2
"""The stage whose only holder is killed."""
ALERT = "RegrowStageLost"


@dataclass
class Watched:
    """All three."""

    made: Swarm
    monitor: Watcher
    prometheus: Prometheus

    def situation(self) -> str:
        """For the message of a failed wait."""
        return f"{self.made.situation()}\n{self.monitor.situation()}\n{self.prometheus.situation()}"

    def wait(self, what: str, condition: Any, limit_s: float = LIMIT_S) -> Any:
        """Poll, and say how all stand where it does not come."""
        return wait_for(what, condition, limit_s, self.situation, poll_s=0.25)

    def all_up(self, count: int) -> bool:
        """So many nodes and the monitor are scraped, and each answers."""
        health = [target["health"] for target in self.prometheus.targets()]
        return len(health) == count + 1 and set(health) == {"up"}

    def look_at_alert(self) -> str:
        """The state of the alert about the lost stage now, '' for none."""
        found = [alert for alert in self.prometheus.alerts(ALERT) if alert["labels"]["stage"] == str(LOST)]
        return str(found[0]["state"]) if found else ""

    def step(self) -> int:
        """What the first node has committed."""
        return int(self.made.status(self.made.nodes[0]).get("step", 0))


@contextmanager
def watching(folder: Path) -> Iterator[Watched]:
    """Four stages with one holder each; every node is scraped when the block begins."""
    manifest = write_manifest(
        folder,
        num_block_stages=BLOCK_STAGES,
        model__num_hidden_layers=BLOCK_STAGES,
        max_steps=100_000,
        evaluation__every_steps=3,
        timing__heartbeat_s=0.5,
        timing__lapse_heartbeats=8,
        timing__lease_s=10.0,
        recovery__policy="checkfree",
        recovery__rebuild_grace_s=0.0,
        recovery__newcomer_wait_s=300.0,
    )
    with swarm(folder) as made:
        first = made.start(manifest, "--stage", "0", "--max-upload-mbit", "800", name="s0")
        invite = made.running(first).invite
        for stage in range(1, BLOCK_STAGES + 1):
            made.join(invite, "--stage", str(stage), name=f"s{stage}")
        for node in made.nodes:
            made.running(node)
        made.wait_step(3, LIMIT_S)
        with monitoring(invite, folder / "monitor") as monitor, prometheus(folder / "prometheus", monitor.http) as server:
            watched = Watched(made, monitor, server)
            watched.wait("every node is scraped", lambda: watched.all_up(len(made.nodes)))
            yield watched


def go_through_a_loss(watched: Watched) -> NodeProcess:
    """Until the stage is trained again and the alert is over. Returns the newcomer."""
    made = watched.made
    before = watched.step()
    watched.wait("some steps are seen", lambda: watched.step() >= before + 5)
    holder = made.nodes[LOST]
    holder.process.send_signal(signal.SIGKILL)
    holder.process.wait()
    watched.wait("the alert fires", lambda: watched.look_at_alert() == "firing")
    newcomer = made.join(made.running(made.nodes[0]).invite, name="newcomer")
    watched.wait("the alert is over", lambda: watched.look_at_alert() == "")
    resumed = watched.step()
    watched.wait("training goes on", lambda: watched.step() >= resumed + 5)
    return newcomer

"""Swarms of real node processes for tests: start, wait for what /status and event logs tell, reap all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node import http_client
from node.demo.process import NodeProcess, end_all
from node.event_log import FILE_NAME as EVENTS_FILE
from node.event_log import read_events
from node.ports import UnusableError
from node.running import Running

START_LIMIT_S = 90.0
POLL_S = 0.05


def wait_for(
    what: str, condition: Callable[[], Any], limit_s: float, situation: Callable[[], str] = str, poll_s: float = POLL_S
) -> Any:
    """The first truthy value of `condition`, polled. Fails with `what` and the situation after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {limit_s:.0f} s: {what}\n{situation()}"
        time.sleep(poll_s)


@dataclass
class Swarm:
    """Node processes of one run, in folders of their own under `folder`."""

    folder: Path
    nodes: list[NodeProcess] = field(default_factory=list)

    def start(self, manifest: Path, *args: str, name: str = "first") -> NodeProcess:
        """`regrow start`; does not wait."""
        return self._add(name, ["start", str(manifest), *args])

    def join(self, invite: str, *args: str, name: str) -> NodeProcess:
        """`regrow join`; does not wait. With the name of one that has ended it comes back with that one's state directory."""
        return self._add(name, ["join", invite, *args])

    def _add(self, name: str, args: list[str]) -> NodeProcess:
        node = NodeProcess.start(name, args, self.folder / name)
        self.nodes.append(node)
        return node

    def launch(self, manifest: Path, num_block_stages: int, replicas: int = 1, each: Sequence[str] = ()) -> list[NodeProcess]:
        """A whole swarm, one stage a node, waited for until all are up. `each`: more flags of all but the first."""
        first = self.start(manifest, "--stage", "0", name="s0r0")
        invite = self.running(first).invite
        for replica in range(replicas):
            for stage in range(num_block_stages + 1):
                if (stage, replica) != (0, 0):
                    self.join(invite, "--stage", str(stage), *each, name=f"s{stage}r{replica}")
        for node in self.nodes:
            self.running(node)
        return self.nodes

    def running(self, node: NodeProcess) -> Running:
        """The node's ready line, waited for; fails if it ends first."""

        def ready() -> bool:
            assert node.check_ready() or node.exit_code is None, self.situation()
            return node.running is not None

        wait_for(f"{node.name} is up", ready, START_LIMIT_S, self.situation)
        assert node.running is not None, "ready"
        return node.running

    def status(self, node: NodeProcess) -> dict[str, Any]:
        """/status of a running node; {} if it does not answer."""
        try:
            return http_client.status(self.running(node).http)
        except UnusableError:
            return {}

    def events(self, node: NodeProcess, *types: str) -> list[dict[str, Any]]:
        """Its event log, or only these types."""
        found = read_events(node.state_dir / EVENTS_FILE)
        return [event for event in found if not types or event["type"] in types]

    def wait_step(self, step: int, limit_s: float, node: NodeProcess | None = None) -> None:
        """Until the node (default: the first) has noted the loss of this step."""
        watched = node or self.nodes[0]
        wait_for(
            f"step {step}",
            lambda: any(event["step"] >= step for event in self.events(watched, "loss")),
            limit_s,
            self.situation,
        )

    def wait_ended(self, limit_s: float) -> list[int]:
        """Exit codes of all nodes, once all have ended."""
        wait_for("all ended", lambda: all(n.exit_code is not None for n in self.nodes), limit_s, self.situation)
        return [node.exit_code or 0 for node in self.nodes]

    def situation(self) -> str:
        """For the message of a failed wait."""
        lines = []
        for node in self.nodes:
            lines.append(f"--- {node.name}: exit code {node.exit_code}")
            lines += node.last_words()
            lines += [str(event)[:200] for event in self.events(node)[-3:]]
        return "\n".join(lines)


@contextmanager
def swarm(folder: Path) -> Iterator[Swarm]:
    """A swarm whose processes are gone afterwards, whatever happens."""
    made = Swarm(folder)
    try:
        yield made
    finally:
        end_all(made.nodes, grace_s=10)

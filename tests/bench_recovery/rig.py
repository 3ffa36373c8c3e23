"""One cell: a swarm of real processes, one node for each namespace, whose stage's only holder gets kill -9."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from node.demo.process import NodeProcess, end_all
from node.manifest_file import load
from protocol.sizes import stage_parameters
from tests.bench_recovery.cells import HEARTBEAT_S, LAPSE_HEARTBEATS, Cell
from tests.bench_recovery.figures import Seen, stage_of
from tests.bench_recovery.link import measure_mbit
from tests.tools.swarm import Swarm, wait_for
from tests.tools.wan import Wan, wan
from tests.tools.wan_router import Link

LINK = Link(delay_s=0.02, rate=100e6 / 8)
STEPS_BEFORE = 6
LIMIT_S = 240.0
LOOK_S = 0.01
GRPC_PORT, DHT_PORT, HTTP_PORT = 28480, 28481, 28482
WEIGHT_BYTES = 4


@dataclass
class WanSwarm(Swarm):
    """A swarm whose n-th node is peer n of an emulated WAN; without one, all are on loopback."""

    network: Wan | None = None

    def _add(self, name: str, args: list[str]) -> NodeProcess:
        if self.network is None:
            return super()._add(name, args)
        peer = len(self.nodes)
        at = f"{self.network.address(peer)}:{GRPC_PORT}"
        ports = ["--lan", "--listen", at, "--dht-port", str(DHT_PORT), "--metrics", f"127.0.0.1:{HTTP_PORT}"]
        with self.network.inside(peer):
            node = NodeProcess.start(name, [*args, *ports], self.folder / name, own_ports=False)
        self.nodes.append(node)
        return node

    def status(self, node: NodeProcess) -> dict[str, Any]:
        """/status, asked from the node's own machine."""
        if self.network is None:
            return super().status(node)
        with self.network.inside(self.nodes.index(node)):
            return super().status(node)

    def downloaded(self, node: NodeProcess) -> int | None:
        """Bytes that came in over its link."""
        return self.network.bytes_received(self.nodes.index(node)) if self.network else None


@contextmanager
def _swarm(folder: Path, network: Wan | None) -> Iterator[WanSwarm]:
    made = WanSwarm(folder, network=network)
    try:
        yield made
    finally:
        end_all(made.nodes, grace_s=0)


@dataclass
class Meter:
    """What comes in at each node, second by second: where a link stands idle."""

    made: WanSwarm
    began: float
    bytes_in: dict[str, list[int]] = field(default_factory=dict)
    """Of each node, the counter when it was first looked at and after each second since."""

    def look(self) -> None:
        """Read the counters, if another second is over."""
        seconds = max(map(len, self.bytes_in.values()), default=0)
        if time.time() >= self.began + seconds:
            for node in self.made.nodes:
                self.bytes_in.setdefault(node.name, []).append(self.made.downloaded(node) or 0)

    def told(self, names: Sequence[str]) -> list[str]:
        """Megabytes of each second, a line for each of these nodes."""
        rows = {name: [b - a for a, b in pairwise(self.bytes_in[name])] for name in names}
        return [f"{name:9}" + " ".join(f"{num / 1e6:4.1f}" for num in row) for name, row in rows.items()]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was seen, and what the emulator said of itself; `traffic` for people."""

    seen: Seen
    traffic: list[str]
    router: dict[str, Any]


def run_cell(cell: Cell, folder: Path) -> Outcome:
    """Measure one cell. Raises `AssertionError` with the nodes' last words where something does not come in time."""
    path = cell.manifest(folder)
    with ExitStack() as stack:
        network = stack.enter_context(wan(cell.num_block_stages + 2, LINK)) if cell.on_wan else None
        link_mbit = measure_mbit(network, 1, cell.num_block_stages + 1) if network else None
        with _swarm(folder, network) as made:
            seen, meter = _lose(cell, made, path, link_mbit)
    around = [name for name in meter.bytes_in if name != seen.holder]
    return Outcome(seen, meter.told(around) if network else [], network.told if network else {})


def _lose(cell: Cell, made: WanSwarm, path: Path, link_mbit: float | None) -> tuple[Seen, Meter]:
    nodes = list(made.launch(path, cell.num_block_stages))
    invite = made.running(nodes[0]).invite
    newcomer = None if cell.newcomer_after_s is not None else made.join(invite, "--stage", str(cell.lost), name="newcomer")
    if newcomer:
        _stands_by(made, nodes[0], newcomer)
    holder = nodes[cell.lost]
    made.wait_step(_step(made) + STEPS_BEFORE, LIMIT_S)
    before = made.network.bytes_received(cell.num_block_stages + 1) if made.network else 0  # the newcomer's, there or not
    killed_at = time.time()
    holder.send(signal.SIGKILL)
    if newcomer is None:
        wait_for("the cold newcomer's time", lambda: time.time() >= killed_at + (cell.newcomer_after_s or 0.0), LIMIT_S)
        newcomer = made.join(invite, "--stage", str(cell.lost), name="newcomer")
    meter = Meter(made, killed_at)
    downloaded = _wait_whole(cell, meter, newcomer, before)
    seen = Seen(
        lost=cell.lost,
        heartbeat_s=HEARTBEAT_S,
        lapse_s=LAPSE_HEARTBEATS * HEARTBEAT_S,
        killed_at=killed_at,
        holder=holder.name,
        newcomer=newcomer.name,
        logs={node.name: made.events(node) for node in made.nodes},
        stage_bytes=WEIGHT_BYTES * stage_parameters(load(path), cell.lost),
        link_rate=LINK.rate if cell.on_wan else None,
        link_mbit=link_mbit,
        downloaded=downloaded,
    )
    return seen, meter


def _step(made: WanSwarm) -> int:
    return max((event["step"] for event in made.events(made.nodes[0], "loss")), default=0)


def _stands_by(made: WanSwarm, coordinator: NodeProcess, newcomer: NodeProcess) -> None:
    peer = made.running(newcomer).peer

    def known() -> bool:
        return peer in {row["peer"] for row in made.status(coordinator).get("view", ())}

    wait_for("the newcomer stands by", known, LIMIT_S, made.situation)


def _wait_whole(cell: Cell, meter: Meter, newcomer: NodeProcess, before: int) -> int | None:
    """Until something was committed with the stage again; the newcomer's download at the transfer's end, if one there is."""
    made, killed_at = meter.made, meter.began
    living = [node for node in made.nodes if node is not made.nodes[cell.lost]]
    is_lost, downloaded = False, None

    def back() -> bool:
        nonlocal is_lost, downloaded
        meter.look()
        news = sorted((event for node in living for event in node.tail.read()), key=lambda event: float(event["wall"]))
        for event in (event for event in news if event["wall"] > killed_at):
            is_lost |= event["type"] == "lost"
            if event["type"] == "transfer" and stage_of(event, cell.lost) == cell.lost and downloaded is None:
                now = made.downloaded(newcomer)
                downloaded = None if now is None else now - before
            if is_lost and event["type"] == "committed" and event["stage"] == cell.lost:
                return True
        return False

    wait_for(f"stage {cell.lost} is back", back, LIMIT_S, made.situation, poll_s=LOOK_S)
    return downloaded

"""What Prometheus is to scrape (HTTP service discovery): every leased node, at its own port or through the monitor.

A lease is a stranger's word, and whoever is told to scrape an address dials it. So a node's own port is only named where that
node was found there; else the monitor passes on what the node tells it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from node.monitor.picture import NodeView
from node.ports import Lease
from protocol.addresses import parse_host_port
from protocol.ids import PeerId


def may_be_direct(lease: Lease) -> bool:
    """Is the HTTP address in the lease at the host where the peer proved its key?"""
    try:
        return bool(lease.http) and parse_host_port(lease.http)[0] == parse_host_port(lease.address)[0]
    except ValueError:
        return False


def targets(run_id: str, nodes: Iterable[NodeView], direct: Mapping[PeerId, str], monitor: str) -> list[dict[str, Any]]:
    """`direct`: HOST:PORT of those that answer there; `monitor`: where whoever asks has reached us."""
    return [_target(run_id, node, direct.get(node.peer, ""), monitor) for node in nodes if node.lease != "leaving"]


def _target(run_id: str, node: NodeView, direct: str, monitor: str) -> dict[str, Any]:
    labels = {
        "run": run_id,
        "peer": node.label,
        "stage": ",".join(map(str, node.stages)),
        "version": node.version,
    }
    path = "/metrics" if direct else f"/node/{node.label}/metrics"
    return {"targets": [direct or monitor], "labels": labels | {"__metrics_path__": path}}

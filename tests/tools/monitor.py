"""A `regrow monitor` as a process of its own, and what it serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from node import http_client
from node.ports import UnusableError
from tests.tools.command import ROOT
from tests.tools.swarm import wait_for

START_LIMIT_S = 90.0
Labels = tuple[tuple[str, str], ...]
Samples = dict[tuple[str, Labels], float]
"""By name and labels, `run` left out."""


@dataclass(frozen=True)
class Watcher:
    """A monitor that is up."""

    process: subprocess.Popen[bytes]
    http: str
    peer: str
    folder: Path

    def status(self) -> dict[str, Any]:
        """Its /status."""
        return http_client.status(self.http)

    def targets(self) -> list[dict[str, Any]]:
        """Its /sd."""
        found: list[dict[str, Any]] = json.loads(http_client.get(self.http, "/sd"))
        return found

    def samples(self) -> Samples:
        """Its /metrics."""
        return samples_of(http_client.get(self.http, "/metrics").decode())

    def node(self, label: str) -> Samples | None:
        """What it passes on of a node; None where it knows nothing of it."""
        try:
            return samples_of(http_client.get(self.http, f"/node/{label}/metrics").decode())
        except UnusableError:
            return None

    def situation(self) -> str:
        """For the message of a failed wait."""
        return (self.folder / "stderr.txt").read_text(errors="replace")[-3000:]


def samples_of(text: str) -> Samples:
    """All samples of Prometheus text."""
    return {
        (sample.name, tuple(sorted((name, value) for name, value in sample.labels.items() if name != "run"))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@contextmanager
def monitoring(invite: str, folder: Path, listen: str = "127.0.0.1:0") -> Iterator[Watcher]:
    """A monitor that is gone afterwards, with exit code 0 where nothing failed before."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "node", "monitor", invite, "--listen", listen, "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = folder / "stdout.txt"
    with out.open("wb") as stdout, (folder / "stderr.txt").open("wb") as stderr:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
        )
    try:

        def ready() -> bytes:
            assert process.poll() is None, (folder / "stderr.txt").read_text()
            line, newline, _ = out.read_bytes().partition(b"\n")
            return line if newline else b""

        told = json.loads(wait_for("the monitor is up", ready, START_LIMIT_S))
        yield Watcher(process, told["http"], told["peer"], folder)
        process.terminate()
        assert process.wait(20) == 0, (folder / "stderr.txt").read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()

"""A real Prometheus with the rules of deploy/prometheus, scraping every second what a monitor tells it, and its answers."""

from __future__ import annotations

import json
import math
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.tools.promtool import ROOT, RULES, tool
from tests.tools.swarm import wait_for

START_LIMIT_S = 60.0
EVERY = "1s"
DEFAULT_MONITOR = "127.0.0.1:28483"


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer; `points` are (seconds since the epoch, value), those that are no number left out."""

    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that is up."""

    url: str
    folder: Path
    began: float

    def ask(self, path: str, **params: str) -> Any:
        """`data` of an answer of its HTTP API. An expression that it cannot read fails the test."""
        where = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(params)}"
        try:
            with urllib.request.urlopen(where, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{params}: {error.read().decode()}") from None

    def now(self, expr: str) -> list[Series]:
        """The expression's value at this moment."""
        return _series(self.ask("query", query=expr)["result"])

    def over_time(self, expr: str, step_s: float = 1.0) -> list[Series]:
        """From when it was started until now."""
        params = {"query": expr, "start": str(self.began), "end": str(time.time()), "step": str(step_s)}
        return _series(self.ask("query_range", **params)["result"])

    def targets(self) -> list[dict[str, Any]]:
        """Whom it scrapes, and how that goes."""
        found: list[dict[str, Any]] = self.ask("targets", state="active")["activeTargets"]
        return found

    def alerts(self, name: str) -> list[dict[str, Any]]:
        """Those with this name that are pending or firing."""
        return [alert for alert in self.ask("alerts")["alerts"] if alert["labels"]["alertname"] == name]

    def situation(self) -> str:
        """For the message of a failed wait."""
        return (self.folder / "prometheus.log").read_text(errors="replace")[-3000:]


def _series(result: list[dict[str, Any]]) -> list[Series]:
    made = []
    for one in result:
        values = [(float(at), float(value)) for at, value in one.get("values") or [one["value"]]]
        points = tuple((at, value) for at, value in values if not math.isnan(value))
        if points:
            made.append(Series(one["metric"], points))
    return made


def configuration(monitor: str) -> dict[str, Any]:
    """deploy/prometheus/prometheus.yml with the monitor's real address, quicker."""
    text = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    assert DEFAULT_MONITOR in text
    read: dict[str, Any] = yaml.safe_load(text.replace(DEFAULT_MONITOR, monitor))
    read["global"] = {"scrape_interval": EVERY, "scrape_timeout": EVERY, "evaluation_interval": EVERY}
    read["rule_files"] = [str(RULES / "*.yml")]
    for job in read["scrape_configs"]:
        for found in job.get("http_sd_configs", ()):
            found["refresh_interval"] = EVERY
    return read


@contextmanager
def prometheus(folder: Path, monitor: str) -> Iterator[Prometheus]:
    """One that is gone afterwards. `monitor`: HOST:PORT of what it asks whom to scrape."""
    program = tool("prometheus")
    folder.mkdir(parents=True)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration(monitor)))
    log = folder / "prometheus.log"
    command = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    command += ["--web.listen-address=127.0.0.1:0", "--log.level=info"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
    try:

        def address() -> str:
            assert process.poll() is None, log.read_text()
            lines = [line for line in log.read_text().splitlines() if 'msg="Listening on"' in line]
            return lines[0].rpartition("address=")[2] if lines else ""

        url = "http://" + str(wait_for("Prometheus listens", address, START_LIMIT_S))
        made = Prometheus(url, folder, time.time())
        wait_for("Prometheus is ready", lambda: _is_ready(url), START_LIMIT_S, made.situation)
        yield made
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False

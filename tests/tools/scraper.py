"""Somebody who scrapes every node once a second, as Prometheus does. What no node may show him he keeps as sentences."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from node import http_client
from node.ports import UnusableError
from tests.tools.swarm import Swarm

PERIOD_S = 1.0
Labels = tuple[tuple[str, str], ...]
Key = tuple[int, str, Labels]
"""(process, name of the sample, labels)."""


@dataclass
class Scraper:
    """See the module; `losses` are all values of the training loss that anybody showed."""

    made: Swarm
    scrapes: int = 0
    wrong: list[str] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    _before: dict[Key, float] = field(default_factory=dict)

    def scrape(self) -> None:
        """Every node that is up, once."""
        for node in list(self.made.nodes):
            if node.running is None or node.exit_code is not None:
                continue
            try:
                text = http_client.get(node.running.http, "/metrics").decode()
            except UnusableError:
                continue  # killed or stopped meanwhile
            self.scrapes += 1
            self._look(node.name, node.process.pid, text)

    def _look(self, name: str, pid: int, text: str) -> None:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if family.type in ("counter", "histogram") and not sample.name.endswith("_created"):
                    key: Key = (pid, sample.name, tuple(sorted(sample.labels.items())))
                    before = self._before.get(key, 0.0)
                    if sample.value < before:
                        self.wrong.append(f"{name}: {sample.name}{sample.labels} fell from {before} to {sample.value}")
                    self._before[key] = sample.value
                elif sample.name == "regrow_loss" and sample.value > 0:
                    self.losses.append(sample.value)


@contextmanager
def scraping(made: Swarm) -> Iterator[Scraper]:
    """Scrapes on a thread of its own until the block ends."""
    scraper, over = Scraper(made), threading.Event()

    def scrape_on() -> None:
        while not over.wait(PERIOD_S):
            scraper.scrape()

    thread = threading.Thread(target=scrape_on, name="scraper")
    thread.start()
    try:
        yield scraper
    finally:
        over.set()
        thread.join()

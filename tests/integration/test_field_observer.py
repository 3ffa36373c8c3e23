"""FIELD-CASE 10, metrics that jump with the number of peers, as an observer sees it: the learning rate is 0, a stage has 1, 2,
3, 1 replicas, a monitor watches and is scraped every second; then some claim to be there and are gone again.

Survived: one loss; counters never fall; whenever the run stands still, the tokens of all who ever computed at a stage add up to
the run's, to the token; a node whose port cannot be reached is passed on as it is; of those who are gone there is no series
left; and nobody in the run has ever heard of the observer.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from node import http_client
from node.demo.process import NodeProcess
from node.ports import Lease, UnusableError
from tests.integration.ends import Ending, claimed, end_all_at_once, observer
from tests.tools.crowd import Crowd
from tests.tools.material import write_manifest
from tests.tools.monitor import Labels, Samples, Watcher, monitoring, samples_of
from tests.tools.organiser import Organiser
from tests.tools.swarm import swarm, wait_for

NUM_MICROBATCHES = 12
STEP_TOKENS = 2 * NUM_MICROBATCHES * 32
PERIOD_S = 1.0
LIMIT_S = 120.0
CALM_STEPS = 5
GUESTS, GUEST_LEASE_S = 3, 12.0
NOISE = 0.02
"""Relative, of a step's loss around the mean of all: which samples it has."""


@dataclass
class Scrapes:
    """What a monitor showed, once a second; what it must not show is kept as sentences."""

    monitor: Watcher
    count: int = 0
    losses: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _before: Samples = field(default_factory=dict)

    def scrape(self) -> None:
        try:
            samples = self.monitor.samples()
        except UnusableError as error:
            self.wrong.append(str(error))
            return
        self.count += 1
        for key, value in samples.items():
            if key[0].endswith(("_total", "_count", "_bucket", "_sum")) and value < self._before.get(key, 0.0):
                self.wrong.append(f"{key} fell from {self._before[key]} to {value}")
        self._before |= samples
        self.losses += [samples[key] for key in samples if key[0] == "regrow_swarm_loss"]


@contextmanager
def scraping(monitor: Watcher) -> Iterator[Scrapes]:
    """On a thread of its own until the block ends."""
    scrapes, over = Scrapes(monitor), threading.Event()

    def scrape_on() -> None:
        while not over.wait(PERIOD_S):
            scrapes.scrape()

    thread = threading.Thread(target=scrape_on, name="scrapes the monitor")
    thread.start()
    try:
        yield scrapes
    finally:
        over.set()
        thread.join()


class World:
    """A run under a monitor. `gone`: tokens by (peer, stage) of those who have left, as they were when the run stood still."""

    def __init__(self, crowd: Crowd, monitor: Watcher) -> None:
        self.crowd, self.monitor, self.organiser = crowd, monitor, Organiser(crowd.made)
        self.gone: dict[Labels, float] = {}
        self.step = 0

    def stands_still(self) -> Samples:
        """What the monitor shows once the run is paused and it knows all of that."""
        self.organiser.order("pause")
        self.step = self.organiser.paused(self.step)
        peers = {self.crowd.made.running(node).peer for node in self.crowd.living()}

        def knows() -> bool:
            told = self.monitor.status()
            live = {(node["peer"], node["step"]) for node in told["nodes"] if node["phase"] == "paused"}
            return told["step"] == self.step and live == {(peer, self.step) for peer in peers}

        wait_for("the monitor sees the run standing still", knows, LIMIT_S, self.monitor.situation)
        wait_for("it tells Prometheus so", lambda: self.monitor.samples()["regrow_swarm_step", ()] == self.step, LIMIT_S)
        return self.monitor.samples()

    def adds_up(self) -> Samples:
        """Everything that counts at each stage, by somebody. A node's proofs may come a look later than its step."""
        self.stands_still()

        def summed() -> Samples | None:
            samples = self.monitor.samples()
            total = samples["regrow_swarm_tokens_total", ()]
            sums = {self.tokens(samples, stage) for stage in ("0", "1")}
            return samples if sums == {total} == {self.step * STEP_TOKENS} else None

        found: Samples = wait_for("tokens add up", summed, LIMIT_S, lambda: f"{self.gone}, {self.monitor.samples()}")
        return found

    def tokens(self, samples: Samples, stage: str) -> float:
        """Of all who computed at the stage, those who are gone too."""
        told = {labels: value for (name, labels), value in samples.items() if name == "regrow_swarm_node_tokens_total"}
        return sum(value for labels, value in (self.gone | told).items() if ("stage", stage) in labels)

    def goes_on(self) -> None:
        """For some steps, with all who are there."""
        self.organiser.order("resume")
        self.crowd.whole()
        self.crowd.go_on(CALM_STEPS)

    def comes(self, name: str) -> None:
        """One more replica of stage 1."""
        node = self.crowd.come(name, "--stage", "1", staying=self.crowd.made.nodes[:1])
        self.crowd.made.running(node)
        self.crowd.whole()
        self.crowd.go_on(CALM_STEPS)

    def go(self, *names: str) -> None:
        """They leave a run that stands still."""
        samples = self.adds_up()
        nodes = [node for node in self.crowd.living() if node.name in names]
        ends = {self.crowd.made.running(node).peer[-12:] for node in nodes}
        for (name, labels), value in samples.items():
            if name == "regrow_swarm_node_tokens_total" and dict(labels)["peer"] in ends:
                self.gone[labels] = value
        assert len(self.gone) == len(names)
        for node in nodes:
            ending = Ending(node)
            ending.send(2)
            assert ending.check({0}) == 0
            self.crowd.made.nodes.remove(node)
        wait_for("nothing is shown of who has left", lambda: not self.shown(ends), LIMIT_S, self.monitor.situation)

    def shown(self, ends: set[str]) -> list[tuple[str, Labels]]:
        """Series and targets of these peers."""
        targets = [target["labels"]["peer"] for target in self.monitor.targets()]
        series = [key for key in self.monitor.samples() if dict(key[1]).get("peer") in ends]
        return series + [("target", (("peer", peer),)) for peer in targets if peer in ends]


@pytest.mark.full
@pytest.mark.timeout(420)
def test_what_an_observer_shows_does_not_depend_on_how_many_there_are(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with swarm(tmp_path) as made:
        invite = made.running(made.start(write_run(tmp_path), "--stage", "0")).invite
        crowd = Crowd(made)
        hidden = made.join(invite, "--stage", "1", "--metrics", "127.0.0.2:0", name="one0")
        made.running(hidden)
        with monitoring(invite, tmp_path / "monitor") as monitor, scraping(monitor) as scrapes:
            crowd.go_on(CALM_STEPS)
            world = World(crowd, monitor)
            world.adds_up()
            assert_passed_on(world, hidden)
            world.goes_on()
            for name in ("one1", "one2"):
                world.comes(name)
                world.adds_up()
                world.goes_on()
            world.go("one1", "one2")
            world.goes_on()
            before = world.adds_up()
            gone = asyncio.run(guests(invite, tmp_path, monitor))
            wait_for("the guests' series are gone", lambda: not world.shown(gone), LIMIT_S, monitor.situation)
            assert monitor.samples().keys() == before.keys()
            assert_unheard_of(crowd, monitor)
            assert_one_loss(crowd, scrapes)
        assert end_all_at_once(crowd.living()) == [0, 0]
    record_property("scrapes", scrapes.count)


def write_run(folder: Path) -> Path:
    return write_manifest(
        folder,
        num_block_stages=1,
        max_steps=100_000,
        batch__global_samples=2 * NUM_MICROBATCHES,
        optimizer__learning_rate=0.0,
        evaluation__every_steps=0,
        recovery__policy="none",
        timing__lease_s=10.0,
    )


async def guests(invite: str, folder: Path, monitor: Watcher) -> set[str]:
    """Some claim stage 1, are seen by the monitor, and vanish without a word; the ends of their ids."""
    async with AsyncExitStack() as stack:
        entered = [await stack.enter_async_context(observer(invite, folder / f"guest{n}")) for n in range(GUESTS)]
        ends = {directory.peer[-12:] for directory in entered}

        async def claim() -> None:
            for directory in entered:
                expires = time.time() + GUEST_LEASE_S
                await directory.publish(Lease(directory.peer, 1, "", "127.0.0.1:9", "", (1,), 0, False, False, expires))

        def seen() -> bool:
            shown = {labels["peer"] for _, key in monitor.samples() if "peer" in (labels := dict(key))}
            return ends <= shown

        async with asyncio.timeout(LIMIT_S):
            await claim()
            claims = await claimed(entered[0])
            assert monitor.peer not in claims
            while not await asyncio.to_thread(seen):
                await claim()
    return ends


def assert_passed_on(world: World, hidden: NodeProcess) -> None:
    """A node whose HTTP port is not where it proved its key is scraped through the monitor, the others at their ports."""
    monitor, running = world.monitor, world.crowd.made.running(hidden)
    end = running.peer[-12:]
    others = [world.crowd.made.running(node) for node in world.crowd.living() if node is not hidden]
    wanted = {other.peer[-12:]: ([other.http], "/metrics") for other in others}
    wanted[end] = ([monitor.http], f"/node/{end}/metrics")

    def found() -> bool:
        targets = monitor.targets()
        return wanted == {t["labels"]["peer"]: (t["targets"], t["labels"]["__metrics_path__"]) for t in targets}

    wait_for("each is a target where it can be scraped", found, LIMIT_S, lambda: f"{monitor.targets()}, {wanted}")
    passed, own = monitor.node(end), samples_of(http_client.get(running.http, "/metrics").decode())
    assert passed is not None
    still = [key for key in own if key[0] in ("regrow_step", "regrow_tokens_total", "regrow_microbatches_total")]
    assert len(still) > 2
    assert {key: passed[key] for key in still} == {key: own[key] for key in still}


def assert_unheard_of(crowd: Crowd, monitor: Watcher) -> None:
    """By anybody: not in what they tell, not in what they noted."""
    for node in crowd.living():
        assert monitor.peer not in json.dumps(crowd.made.status(node))
        assert monitor.peer not in json.dumps(crowd.made.events(node))


def assert_one_loss(crowd: Crowd, scrapes: Scrapes) -> None:
    losses = crowd.losses()
    mean = statistics.mean(losses.values())
    shown = [*losses.values(), *scrapes.losses]
    assert all(abs(value - mean) <= NOISE * mean for value in shown), (mean, min(shown), max(shown))
    assert len(scrapes.losses) >= 10
    assert scrapes.wrong == []

"""A monitor without a network: whom it looks at and when, what it forgets, what it serves, and how much."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from node.monitor.metrics import MonitorMetrics
from node.monitor.observer import MAX_NODES, MAX_PERIOD_S, PERIOD_S, PROBE_EVERY_S, Observer
from node.monitor.server import MonitorSources, open_server
from node.monitor.swarm import FRESH_S
from node.ports import Lease, PeerError, UnusableError
from node.transport.config import Observation, ObserveRequest
from protocol.counted import Tree, show
from protocol.ids import Member
from protocol.messages import Contact
from protocol.records import Share
from tests.tools.clock import StepClock
from tests.tools.core import a_manifest
from tests.tools.monitor import samples_of
from tests.tools.told import RUN_ID, lease, metrics, status

DIGEST = "d" * 64
Roster = tuple[tuple[int, str, str], ...]


class World:
    """A directory and nodes that answer what they are told to, and a monitor that looks at them."""

    def __init__(self, num_nodes: int = 3, max_series: int = 10**6) -> None:
        self.clock = StepClock()
        self.roster: Roster = tuple((n % 3, f"peer{n:04}", "active") for n in range(num_nodes))
        self.leases = [lease(peer, stage, address=f"10.0.0.1:{2000 + n}") for n, (stage, peer, _) in enumerate(self.roster)]
        self.deaf: set[str] = set()
        self.changes: dict[str, Any] = {}
        self.text = metrics()
        self.asked: list[tuple[str, ObserveRequest]] = []
        self.forgotten: list[str] = []
        self.http: dict[str, Mapping[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.proofs: Callable[[str, ObserveRequest], bytes] = lambda *_: b""
        self.metrics = MonitorMetrics(RUN_ID, max_series)
        self.observer = Observer((RUN_ID, DIGEST), self.read, self, self.clock, self.metrics, self.probe)

    async def read(self) -> list[Lease]:
        return list(self.leases)

    async def look(self, node: Contact, asked: ObserveRequest) -> Observation:
        self.asked.append((node.peer, asked))
        if node.peer in self.deaf:
            raise PeerError(node.peer, "no answer")
        told = status(node.peer, 10, self.roster) | {"wall": self.clock.now + 0.25} | self.changes
        events = [event for event in self.events if event["serial"] > asked.after]
        proofs = self.proofs(node.peer, asked)
        return Observation(json.dumps(told).encode(), self.text.encode(), json.dumps(events).encode(), proofs)

    async def forget(self, node: Contact) -> None:
        self.forgotten.append(node.peer)

    def probe(self, address: str) -> Mapping[str, Any]:
        if address not in self.http:
            raise UnusableError(3, "nobody there")
        return self.http[address]

    async def go_on(self, seconds: float = 0.0) -> None:
        self.clock.now += seconds
        await self.observer.read_leases()
        await self.observer.look_around()
        self.observer.show()

    def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        return samples_of(self.metrics.render()[0].decode())

    def of(self, peer: str) -> set[str]:
        """Metrics with this peer."""
        return {name for name, labels in self.samples() if ("peer", peer) in labels}


async def test_it_looks_at_each_once_in_a_while_and_puts_it_together() -> None:
    world = World()
    for _ in range(3):
        await world.go_on(PERIOD_S / 3)
    assert [peer for peer, _ in world.asked] == [lease.peer for lease in world.leases]
    assert {asked for _, asked in world.asked} == {ObserveRequest(DIGEST, True, 0)}
    samples = world.samples()
    assert samples["regrow_swarm_step", ()] == 10
    assert samples["regrow_swarm_nodes", (("state", "live"),)] == 3
    assert samples["regrow_swarm_clock_offset_seconds", (("peer", "peer0000"),)] == 0.25
    assert samples["regrow_monitor_observe_seconds_count", ()] == 3
    assert 'run="' + RUN_ID in world.metrics.render()[0].decode()


async def test_what_is_not_known_is_absent() -> None:
    world = World()
    world.changes = {"loss": None, "wall": None}
    await world.go_on()
    names = {name for name, _ in world.samples()}
    assert not {"regrow_swarm_loss", "regrow_swarm_validation_loss", "regrow_swarm_clock_offset_seconds"} & names
    assert {"regrow_swarm_step", "regrow_swarm_lost_stages"} <= names
    world.deaf = {lease.peer for lease in world.leases}
    await world.go_on(FRESH_S + 1)
    assert not {"regrow_swarm_step", "regrow_swarm_lost_stages", "regrow_swarm_node_step"} & {n for n, _ in world.samples()}


async def test_one_that_does_not_answer_is_asked_ever_less_often_and_costs_the_others_nothing() -> None:
    world = World()
    world.deaf = {"peer0001"}
    for _ in range(400):
        await world.go_on(1.0)
    asked = [peer for peer, _ in world.asked]
    assert asked.count("peer0000") == 400 / PERIOD_S
    assert 400 / MAX_PERIOD_S <= asked.count("peer0001") <= 400 / MAX_PERIOD_S + 6
    assert world.samples()["regrow_swarm_nodes", (("state", "unreachable"),)] == 1
    assert world.samples()["regrow_monitor_observe_failures_total", ()] == asked.count("peer0001")
    world.deaf = set()
    world.leases[1] = replace(world.leases[1], incarnation=2)
    await world.go_on(1.0)
    assert world.samples()["regrow_swarm_nodes", (("state", "live"),)] == 3, "a new start is looked at at once"


async def test_a_vanished_peer_leaves_no_series_once_its_lease_is_over() -> None:
    world = World()
    world.leases[2] = replace(world.leases[2], expires=world.clock.now + 30.0)
    await world.go_on()
    before = {name for name, _ in world.samples()}
    assert len(world.of("peer0002")) >= 3
    world.deaf.add("peer0002")
    await world.go_on(FRESH_S + 1.0)
    assert world.of("peer0002") == {"regrow_swarm_node_starts_total"}, "what it told is too old, its lease still stands"
    assert world.observer.node_text("peer0002") is None
    await world.go_on(10.0)
    assert world.of("peer0002") == set()
    assert [target["labels"]["peer"] for target in world.observer.targets("m:1")] == ["peer0000", "peer0001"]
    assert world.forgotten == ["peer0002"]
    assert {name for name, _ in world.samples()} - {"regrow_swarm_tokens_per_second"} == before


async def test_many_that_come_and_go_leave_nothing() -> None:
    world = World()
    await world.go_on()
    await world.go_on(PERIOD_S)
    before = len(world.samples())
    lasting = list(world.leases)
    for number in range(300):
        world.leases = [*lasting, lease(f"guest{number}", 1, expires=world.clock.now + 30.0)]
        await world.go_on(1.0)
    world.leases = lasting
    await world.go_on(1.0)
    assert len(world.samples()) == before
    assert len(world.observer._watched) == 3
    assert len(world.observer._swarm._pace._points) <= 3


async def test_series_are_capped_members_first_and_that_is_counted() -> None:
    world = World(num_nodes=30, max_series=100)
    world.leases += [lease(f"a-stranger{n}", 1) for n in range(30)]
    await world.go_on()
    samples = world.samples()
    assert sum(name.startswith("regrow_swarm_") and "dropped" not in name for name, _ in samples) in range(90, 101)
    assert world.of("a-stranger0") == set(), "who is not on the roster comes last"
    shown = [peer for _, peer, _ in world.roster if world.of(peer)]
    assert 10 < len(shown) < 30
    assert {len(world.of(peer)) for peer in shown} == {3}, "all of a node or nothing"
    dropped = samples["regrow_swarm_series_dropped_total", ()]
    assert dropped > 0
    world.observer.show()
    assert world.samples()["regrow_swarm_series_dropped_total", ()] == 2 * dropped, "each time that they are left out"


async def test_no_more_nodes_are_watched_than_a_thousand() -> None:
    world = World()
    world.leases += [lease(f"stranger{n}") for n in range(MAX_NODES)]
    await world.observer.read_leases()
    assert len(world.observer._watched) == MAX_NODES
    assert {"peer0000", "peer0001", "peer0002"} <= world.observer._watched.keys()
    assert world.samples()["regrow_swarm_series_dropped_total", ()] == 3


async def test_a_port_is_named_only_where_that_very_node_answers_at_the_host_that_it_proved() -> None:
    world = World()
    own, foreign = "10.0.0.1:80", "10.9.9.9:80"
    world.leases[0] = replace(world.leases[0], http=own)
    world.leases[1] = replace(world.leases[1], http=foreign)
    world.leases[2] = replace(world.leases[2], http="10.0.0.1:81")
    world.http = {own: {"peer": "peer0000", "incarnation": 1}, foreign: {"peer": "peer0001", "incarnation": 1}}
    world.http["10.0.0.1:81"] = {"peer": "peer0000", "incarnation": 1}
    await world.go_on()
    found = {t["labels"]["peer"]: (t["targets"], t["labels"]["__metrics_path__"]) for t in world.observer.targets("mon:9")}
    assert found == {
        "peer0000": ([own], "/metrics"),
        "peer0001": (["mon:9"], "/node/peer0001/metrics"),
        "peer0002": (["mon:9"], "/node/peer0002/metrics"),
    }
    labels = world.observer.targets("mon:9")[0]["labels"]
    assert labels == {"run": RUN_ID, "peer": "peer0000", "stage": "0", "version": "0.1.0", "__metrics_path__": "/metrics"}
    world.http.clear()
    await world.go_on(PROBE_EVERY_S)
    assert world.observer.targets("mon:9")[0]["targets"] == ["mon:9"]


async def test_what_cannot_be_shown_is_a_failure_and_nothing_of_it_is_shown() -> None:
    world = World()
    await world.go_on()
    world.text = 'regrow_loss{a="} 1\n'
    await world.go_on(PERIOD_S)
    assert world.samples()["regrow_monitor_observe_failures_total", ()] == 3
    assert world.observer.node_text("peer0000") == "".join(
        line for line in (world.observer.node_text("peer0000") or "").splitlines(keepends=True) if 'a="' not in line
    )
    world.text, world.changes = metrics(), {"peer": "somebody else"}
    await world.go_on(10 * PERIOD_S)
    assert world.samples()["regrow_monitor_observe_failures_total", ()] == 6


async def test_of_strangers_nothing_is_kept_of_what_they_say_of_others() -> None:
    """A lease costs nothing, a roster may be long, and they are not asked about it."""
    world = World()
    await world.go_on()
    world.leases.append(lease("stranger", 1))
    await world.go_on(PERIOD_S)
    kept = {peer: watched.sighting.told for peer, watched in world.observer._watched.items()}
    lengths = {peer: len(told.roster) for peer, told in kept.items() if told}
    assert lengths == {"peer0000": 3, "peer0001": 3, "peer0002": 3, "stranger": 0}
    world.roster = (*world.roster, (1, "stranger", "active"))
    await world.go_on(PERIOD_S)
    await world.go_on(PERIOD_S)
    told = world.observer._watched["stranger"].sighting.told
    assert told is not None
    assert len(told.roster) == 4, "it is a member now"


async def test_when_no_member_answers_any_more_others_are_heeded() -> None:
    """A spare knows the roster too. Until it is asked again the run is unknown, and no stage is called lost."""
    world = World()
    await world.go_on()
    world.leases.append(lease("spare"))
    await world.go_on(PERIOD_S)
    world.deaf = {peer for _, peer, _ in world.roster}
    stages = []
    for _ in range(30):
        await world.go_on(1.0)
        stages.append([stage.lost for stage in world.observer.picture.stages])
    assert [] in stages
    assert stages[-1] == [False, False, False]
    assert all(lost in ([], [False, False, False]) for lost in stages)


async def test_each_event_is_heard_once() -> None:
    world = World(num_nodes=1)
    world.events = [{"serial": n, "wall": 1.0, "kind": "lost", "step": 1, "text": f"event {n}"} for n in (1, 2)]
    await world.go_on()
    world.events.append({"serial": 5, "wall": 1.0, "kind": "lost", "step": 1, "text": "event 5"})
    await world.go_on(PERIOD_S)
    assert [(event["serial"], event["peer"]) for event in world.observer.chronicle] == [
        (1, "peer0000"),
        (2, "peer0000"),
        (5, "peer0000"),
    ]


async def asked(address: str, path: str, host: str = "") -> tuple[int, bytes]:
    name, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(name, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host or address}\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), body


async def test_its_pages() -> None:
    world = World()
    await world.go_on()
    observer = world.observer
    server = open_server("127.0.0.1", 0, MonitorSources(world.metrics, observer.status, observer.targets, observer.node_text))
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(server.serve(), name="http")
        try:
            assert await asked(server.address, "/healthz") == (200, b"ok\n")
            assert samples_of((await asked(server.address, "/metrics"))[1].decode())["regrow_swarm_step", ()] == 10
            assert json.loads((await asked(server.address, "/status"))[1])["step"] == 10
            code, text = await asked(server.address, "/node/peer0001/metrics")
            assert (code, text.decode()) == (200, observer.node_text("peer0001"))
            assert (await asked(server.address, "/node/nobody/metrics"))[0] == 404
            for host, shown in (("mon.example:9", "mon.example:9"), ("evil/../:1", server.address), ("a b:1", server.address)):
                [first, *_] = json.loads((await asked(server.address, "/sd", host))[1])
                assert first["targets"] == [shown]
        finally:
            server.close()


async def test_it_asks_for_the_proofs_that_it_lacks_and_counts_what_they_show() -> None:
    """Three nodes, one a stage, which have told 10 steps each; then all go back to step 4."""
    world, manifest = World(), a_manifest()
    world.observer = Observer((manifest.run_id, DIGEST), world.read, world, world.clock, world.metrics, world.probe)
    shares = tuple(Share(stage, Member(peer, 1), "f") for stage, peer, _ in world.roster)

    def proofs(peer: str, asked: ObserveRequest) -> bytes:
        trees = {step: Tree(shares, step, manifest) for step in range(1, world.changes["step"] + 1)}
        mine = [share for share in shares if share.member.peer == peer]
        later = [(step, tree) for step, tree in trees.items() if step > asked.claims_after][:4]
        claims = [show(mine[0].member, mine, tree.above(mine[0].stage), step, manifest).text() for step, tree in later]
        roots = [(step, tree.root) for step, tree in trees.items() if step > asked.roots_after][:4]
        return json.dumps({"claims": claims, "roots": roots}).encode()

    world.proofs, world.changes = proofs, {"step": 10, "run_id": manifest.run_id}

    def counted(peer: str, stage: int) -> float | None:
        found = {labels: value for (name, labels), value in world.samples().items() if name.endswith("node_tokens_total")}
        return found.get((("peer", peer), ("stage", str(stage))))

    step_tokens = manifest.batch.tokens_per_step
    seen = []
    for _ in range(6):
        await world.go_on(PERIOD_S)
        seen.append(counted("peer0001", 1))
    assert seen[-1] == 10 * step_tokens
    assert [value for value in seen if value] == sorted(value for value in seen if value), "it only grows"
    assert [asked.claims_after for peer, asked in world.asked if peer == "peer0001"] == [0, 4, 8, 10, 10, 10]
    world.changes["step"] = 4
    await world.go_on(PERIOD_S)
    assert counted("peer0001", 1) == 4 * step_tokens
    world.changes["step"] = 5
    for _ in range(2):
        await world.go_on(PERIOD_S)
    assert counted("peer0001", 1) == 5 * step_tokens


async def test_of_strangers_no_proofs_are_kept() -> None:
    """A lease costs nothing: a thousand of them with long lists of claims would cost a lot."""
    world, manifest = World(), a_manifest()
    stranger = lease("stranger", 1, address="10.0.0.9:1")
    world.leases.append(stranger)
    share = Share(1, Member("stranger", 1), "f")
    claims = [show(share.member, [share], ("a" * 32, "b" * 32), step, manifest).text() for step in range(1, 400)]
    world.proofs = lambda peer, _: json.dumps({"claims": claims if peer == "stranger" else []}).encode()
    for _ in range(3):
        await world.go_on(PERIOD_S)
    assert [asked.claims_after for peer, asked in world.asked if peer == "stranger"] == [0, 0, 0]
    assert "stranger" not in world.observer._counted._waiting
    assert all(not watched.shown.claims for watched in world.observer._watched.values())

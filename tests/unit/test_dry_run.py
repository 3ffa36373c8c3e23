"""What `join --dry-run` sees of a swarm and tells about it."""

from __future__ import annotations

import json

import pytest

from node.dry_run import Report, Survey, pace, survey
from node.ports import Lease, PeerError
from node.sim.loop import VirtualClock, run_virtual
from node.transport.config import Description, HeldStage
from protocol.forecast import Machine, forecast
from protocol.messages import Contact
from tests.tools.core import a_manifest


def lease(peer: str, *stages: int) -> Lease:
    return Lease(peer, 1, "", f"{peer}:1", "", stages, 0, False, False, 0.0)


class Peers:
    """Peers that hold stages, the step of each a function of the time."""

    def __init__(self, held: dict[str, tuple[int, ...]], first_step: int = 1, step_s: float = 2.0) -> None:
        self.held, self.first_step, self.step_s = held, first_step, step_s
        self.clock = VirtualClock()
        self.asked = 0

    async def describe(self, peer: Contact) -> Description:
        self.asked += 1
        await self.clock.sleep(0.1)
        if peer.peer not in self.held:
            raise PeerError(peer.peer, "no answer")
        step = self.first_step + int(self.clock.monotonic() / self.step_s)
        stages = tuple(HeldStage(stage, "s", step, 8) for stage in self.held[peer.peer])
        return Description("run", peer.peer, 1, 1, stages)


def test_peers_words_count_more_than_their_leases() -> None:
    leases = [lease("a", 0), lease("b", 0, 1), lease("c"), lease("d", 2)]

    async def look() -> Survey:
        return await survey(leases, Peers({"a": (0,), "b": (0, 1), "c": (2,)}), a_manifest(policy="checkfree"))

    seen = run_virtual(look())
    assert seen.num_peers == 4
    assert seen.held == {0: 1, 1: 1, 2: 2}, "b's stage 0 is an embedding copy, d does not answer"
    assert seen.fastest is not None and seen.fastest.peer == "c"


def test_without_copies_two_seats_are_two_seats() -> None:
    async def look() -> Survey:
        return await survey([lease("b", 0, 1)], Peers({}), a_manifest(policy="none"))

    seen = run_virtual(look())
    assert (seen.held, seen.step, seen.fastest) == ({0: 1, 1: 1}, 0, None)


def test_under_policy_redundant_the_next_stage_is_a_copy() -> None:
    manifest = a_manifest(num_block_stages=3, recovery={"policy": "redundant"})
    held = {"a": (0, 1), "b": (1, 2), "c": (2, 3), "d": (0, 3), "e": (3,)}

    async def look() -> Survey:
        return await survey([lease(peer) for peer in held], Peers(held), manifest)

    assert run_virtual(look()).held == {0: 1, 1: 1, 2: 1, 3: 2}


@pytest.mark.parametrize(
    ("num_block_stages", "held", "wanted"),
    [
        (3, [(0, 2), (1, 3), (2, 0), (3, 1)], {0: 1, 1: 1, 2: 1, 3: 1}),
        (3, [(0, 2), (1, 3), (2, 0), (3, 1), (2,), (1,)], {0: 1, 1: 2, 2: 2, 3: 1}),
        (3, [(0, 2), (1, 3), (3, 1), ()], {0: 1, 1: 1, 2: 1, 3: 1}),
        (1, [(0, 1), (0, 1)], {0: 1, 1: 1}),
        (4, [(0, 3), (1, 4), (2, 0), (3, 1), (4, 2)], {0: 1, 1: 1, 2: 1, 3: 1, 4: 1}),
        (4, [(0, 3), (1, 4), (3, 1), (4, 2)], {0: 1, 1: 1, 3: 1, 4: 1}),
    ],
    ids=["even", "even, some held twice", "one computes both after a loss", "two stages", "odd", "odd, one lost"],
)
def test_an_exact_shadow_is_no_replica(num_block_stages: int, held: list[tuple[int, ...]], wanted: dict[int, int]) -> None:
    manifest = a_manifest(num_block_stages=num_block_stages, recovery={"policy": "shadow", "shadow_every": 1})
    told = {f"p{number}": stages for number, stages in enumerate(held)}

    async def look() -> Survey:
        return await survey([lease(peer, *stages) for peer, stages in told.items()], Peers({"p0": held[0]}), manifest)

    assert run_virtual(look()).held == wanted


@pytest.mark.parametrize("step_s", [0.3, 2.0, 3.5])
def test_the_swarms_pace(step_s: float) -> None:
    peers = Peers({"a": (1,)}, step_s=step_s)

    async def watch() -> float:
        return await pace(Contact("a", "a:1"), peers, VirtualClock())

    assert run_virtual(watch()) == pytest.approx(step_s, rel=0.35)
    assert peers.asked < 50


def test_a_swarm_whose_pace_cannot_be_learned() -> None:
    async def watch(peers: Peers) -> float:
        return await pace(Contact("a", "a:1"), peers, VirtualClock())

    assert run_virtual(watch(Peers({"a": (1,)}, step_s=1e6))) == 0.0
    assert run_virtual(watch(Peers({}))) == 0.0


def report(machine: Machine, step_s: float = 0.0, step: int = 7) -> Report:
    manifest = a_manifest()
    seen = Survey(3, {0: 1, 1: 4, 2: 4}, step, None)
    return Report(manifest, seen, machine, forecast(manifest, seen.held, machine, step_s))


def test_what_is_told() -> None:
    found = report(Machine(8 * 10**9, 10**12, has_tokens=False), step_s=1.5)
    assert found.obstacle == ""
    rows = dict(found.rows())
    assert list(rows) == ["run", "model", "stage", "memory", "disk", "download", "traffic"]
    assert rows["run"].endswith("step 7 of 10, 3 peers")
    assert rows["stage"] == "0 (with 1 replica it is likely the slowest)"
    assert rows["memory"] == "about 537 MB needed; this node may use 8.0 GB"
    assert rows["disk"] == "2.1 MB needed; 1.0 TB free"
    assert rows["traffic"].endswith(" out per hour at the present 1.5 s a step")
    told = json.loads(json.dumps(found.as_json()))
    assert (told["stage"], told["step_s"], told["download_bytes"] - told["disk_bytes"]) == (0, 1.5, 12 * (2 * 16 * 8 + 8))
    assert told["hour_bytes"]["in"] == 2400 * told["step_bytes"]["in"]


def test_what_cannot_be_known_is_said() -> None:
    found = report(Machine(0, 10**12, has_tokens=True), step=0)
    rows = dict(found.rows())
    assert rows["memory"].endswith("what is free is not known")
    assert rows["download"] == "0 bytes before step 1"
    assert rows["traffic"].endswith("the swarm's pace could not be learned now")
    assert found.as_json()["hour_bytes"] is None


def test_obstacles() -> None:
    small = report(Machine(1 << 20, 10**12, has_tokens=True))
    assert small.obstacle.startswith("this run has no stage for this machine: even the smallest stage, ")
    assert small.as_json()["stage"] is None
    assert dict(small.rows())["stage"].startswith("none: ")
    full = report(Machine(0, 1000, has_tokens=False))
    assert full.obstacle == "stage 0 needs 2.1 MB for token shards, and 1.0 kB are free; choose another --state-dir"

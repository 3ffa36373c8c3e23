"""The reduce among members in one process: a toy network with chosen delays, a toy executor on numpy, virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import node.reduce
from node.payloads import HandlePool
from node.ports import BadTensorError, Payload, PeerError, TensorSpec
from node.reduce import Piece, Reducer, cut
from node.sim.loop import run_virtual
from protocol.commands import Reduce, ReduceMember, StopReduce
from protocol.ids import Ballot, Member, PeerId
from protocol.messages import ReduceHeader
from protocol.records import Role

BALLOT = Ballot(1, "lead")
STAGE, STEP, ATTEMPT = 3, 7, 2
PATIENCE_S = 10.0
Fault = Callable[[PeerId, ReduceHeader, Payload], list[tuple[PeerId, ReduceHeader, Payload, float]]]
"""(receiver, header, payload) -> what arrives instead: (as if from, header, payload, delay)."""


def encode(values: np.ndarray, codec: str) -> Payload:
    """`bf16` here: the upper half of an f32, cut off. Lossy, like the real one."""
    words = values.astype("<f4").view("<u4")
    data = words.tobytes() if codec == "f32" else (words >> 16).astype("<u2").tobytes()
    return Payload(TensorSpec(codec, (len(values),)), memoryview(data))


def decode(payload: Payload) -> np.ndarray:
    if payload.spec.codec == "f32":
        return np.frombuffer(payload.data, "<f4")
    return (np.frombuffer(payload.data, "<u2").astype("<u4") << 16).view("<f4")


@dataclass
class ToyExecutor:
    """Holds one flat gradient; only what a reduce needs."""

    gradient: np.ndarray
    codec: str = "f32"
    sum: np.ndarray = field(init=False)
    used_local: bool = False

    def __post_init__(self) -> None:
        self.sum = np.full_like(self.gradient, np.nan)

    async def gradient_range(self, stage: int, first: int, count: int) -> Payload:
        await asyncio.sleep(0)
        return encode(self.gradient[first : first + count], self.codec)

    async def sum_range(self, stage: int, first: int, parts: list[Payload]) -> Payload:
        await asyncio.sleep(0)
        total = None
        for part in parts:
            values = decode(part)
            if part.spec.codec != self.codec or not np.isfinite(values).all():
                raise BadTensorError("", "not finite", "not_finite")
            total = values.copy() if total is None else total + values
        assert total is not None
        return encode(total, self.codec)

    async def install_range(self, stage: int, first: int, payload: Payload) -> None:
        values = decode(payload)
        if not np.isfinite(values).all():
            raise BadTensorError("", "not finite", "not_finite")
        self.sum[first : first + len(values)] = values

    async def use_local(self, stage: int) -> None:
        self.used_local = True
        self.sum = self.gradient.copy()

    async def reduced(self, stage: int) -> tuple[str, float]:
        assert not np.isnan(self.sum).any(), "a piece is missing"
        return self.sum.tobytes().hex(), float((self.sum.astype("f8") ** 2).sum())


class Net:
    """Everybody's transport: delivers after a delay, or what a fault makes of it."""

    def __init__(self) -> None:
        self.members: dict[PeerId, Toy] = {}
        self.faults: dict[PeerId, Fault] = {}
        self.delay: Callable[[PeerId, PeerId, ReduceHeader], float] = lambda *_: 0.01
        self.pending: set[asyncio.Task[None]] = set()

    async def send(self, sender: PeerId, to: PeerId, header: ReduceHeader, payload: Payload) -> None:
        fault = self.faults.get(sender)
        arrivals = fault(to, header, payload) if fault else [(sender, header, payload, self.delay(sender, to, header))]
        for as_if, changed, data, delay in arrivals:
            loop = asyncio.get_running_loop()
            loop.call_later(delay, self.members[to].take, as_if, changed, data)
        await asyncio.sleep(0)


class Toy:
    """One member."""

    def __init__(self, net: Net, peer: PeerId, gradient: np.ndarray, codec: str) -> None:
        self.net, self.peer = net, peer
        self.pool = HandlePool()
        self.executor = ToyExecutor(gradient, codec)
        self.reducer = Reducer(peer, self, self.executor, self.pool, PATIENCE_S)  # type: ignore[arg-type]
        self.reducer.seat(STAGE, len(gradient))
        net.members[peer] = self

    async def send_payload(self, peer: PeerId, header: ReduceHeader, handle: int) -> None:
        payload = self.pool.get(handle)
        await self.net.send(self.peer, peer, header, payload)

    def take(self, sender: PeerId, header: ReduceHeader, payload: Payload) -> None:
        self.reducer.deliver(sender, header, self.pool.put(payload))


class Group:
    """A replica set with random gradients."""

    def __init__(self, active: int, passive: int, num_elements: int = 23, codec: str = "f32", seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.net = Net()
        roles: list[Role] = ["active"] * active + ["passive"] * passive
        self.peers = [f"{role[0]}{i}" for i, role in enumerate(roles)]
        for peer in self.peers:
            gradient = (rng.standard_normal(num_elements) * 10.0 ** rng.integers(-4, 5, num_elements)).astype("<f4")
            Toy(self.net, peer, gradient, codec)
        rows = [ReduceMember(Member(p, 1), r, "1") for p, r in zip(self.peers, roles, strict=True)]
        self.command = Reduce(BALLOT, STAGE, STEP, ATTEMPT, tuple(rows))
        self.active = self.peers[:active]

    def __getitem__(self, peer: PeerId) -> Toy:
        return self.net.members[peer]

    async def run(self, *peers: PeerId, start: Callable[[PeerId], float] = lambda _: 0.0) -> dict[PeerId, Any]:
        """Results or `PeerError`s by peer."""

        async def one(peer: PeerId) -> Any:
            await asyncio.sleep(start(peer))
            try:
                return await self[peer].reducer.run(self.command)
            except PeerError as error:
                return error

        who = peers or tuple(self.peers)
        async with asyncio.TaskGroup() as group:
            tasks = {p: group.create_task(one(p)) for p in who}
        return {p: t.result() for p, t in tasks.items()}

    def expected(self) -> np.ndarray:
        """Sum in roster order of what was sent, rounded as it was sent."""
        executors = [self[p].executor for p in self.active]
        total = decode(encode(executors[0].gradient, executors[0].codec)).copy()
        for executor in executors[1:]:
            total = total + decode(encode(executor.gradient, executor.codec))
        return decode(encode(total, executors[0].codec))

    def check_whole(self) -> None:
        for peer in self.peers:
            np.testing.assert_array_equal(self[peer].executor.sum, self.expected(), err_msg=peer)

    def check_nothing_left(self) -> None:
        for peer in self.peers:
            self[peer].reducer.discard(STAGE, STEP, ATTEMPT)
            assert self[peer].pool.num_live == 0, f"{peer} keeps {self[peer].pool.num_live} payloads"
            assert not self[peer].reducer._boxes


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.reduce, "PIECE_ELEMENTS", 3)
    monkeypatch.setattr(cut, "__defaults__", (3,))


def virtual(main: Awaitable[Any]) -> Any:
    return run_virtual(main, limit_s=300.0)  # type: ignore[arg-type]


# ---- cutting ----


@pytest.mark.parametrize("num_elements", [1, 2, 5, 9, 10, 100])
@pytest.mark.parametrize("owners", [["a"], ["a", "b"], ["a", "b", "c", "d"]])
@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_pieces_cover_the_gradient_once(num_elements: int, owners: list[PeerId], piece: int) -> None:
    pieces = cut(num_elements, owners, piece)
    assert [m for p in pieces for m in range(p.first, p.first + p.count)] == list(range(num_elements))
    assert all(0 < p.count <= piece for p in pieces)
    shares = [sum(p.count for p in pieces if p.owner == owner) for owner in owners]
    assert max(shares) - min(shares) <= 1


def test_an_owner_without_a_share_has_no_piece() -> None:
    assert cut(1, ["a", "b"]) == [Piece(0, 1, "b")]


# ---- the sum ----


@pytest.mark.parametrize("active", [1, 2, 3, 4])
@pytest.mark.parametrize("passive", [0, 1, 2])
@pytest.mark.parametrize("codec", ["f32", "bf16"])
def test_all_members_hold_the_same_sum(active: int, passive: int, codec: str) -> None:
    group = Group(active, passive, codec=codec)
    results = virtual(group.run())
    assert len(set(results.values())) == 1
    if active + passive == 1:
        assert group[group.peers[0]].executor.used_local
    else:
        group.check_whole()
    group.check_nothing_left()


def test_it_is_summed_in_roster_order_whatever_arrives_first() -> None:
    group = Group(4, 1)
    order = {p: i for i, p in enumerate(reversed(group.active))}
    group.net.delay = lambda sender, *_: 0.1 + order.get(sender, 0)
    virtual(group.run())
    group.check_whole()
    backwards = sum(group[p].executor.gradient for p in reversed(group.active))
    assert (backwards != group.expected()).any(), "the case was meant to tell orders apart"


@pytest.mark.parametrize("num_elements", [1, 2, 3, 4])
def test_gradients_smaller_than_the_replica_set(num_elements: int) -> None:
    group = Group(4, 1, num_elements=num_elements)
    virtual(group.run())
    group.check_whole()
    group.check_nothing_left()


def test_pieces_that_come_before_the_reduce_begins_are_kept() -> None:
    group = Group(3, 1)
    virtual(group.run(start=lambda peer: 5.0 if peer in ("a2", "p3") else 0.0))
    group.check_whole()
    group.check_nothing_left()


@pytest.mark.parametrize("late", [0.0, 0.3, 2.0])
def test_repeated_pieces_change_nothing(late: float) -> None:
    group = Group(3, 1)
    for peer in group.peers:
        group.net.faults[peer] = lambda to, h, p, me=peer: [(me, h, p, 0.01), (me, h, p, 0.01 + late)]  # type: ignore[misc]

    async def main() -> None:
        await group.run()
        await asyncio.sleep(5)

    virtual(main())
    group.check_whole()
    group.check_nothing_left()


def test_several_stages_at_once_do_not_mix() -> None:
    group = Group(2, 0)
    for peer in group.peers:
        group[peer].reducer.seat(STAGE + 1, 23)

    async def main() -> None:
        other = replace(group.command, stage=STAGE + 1)
        async with asyncio.TaskGroup() as tasks:
            for peer in group.peers:
                tasks.create_task(group[peer].reducer.run(group.command))
                tasks.create_task(group[peer].reducer.run(other))

    virtual(main())
    group.check_whole()
    for peer in group.peers:
        group[peer].reducer.discard(STAGE + 1, STEP, ATTEMPT)
    group.check_nothing_left()


# ---- who is to blame ----


def silent(*_: Any) -> list[Any]:
    return []


@pytest.mark.parametrize("passive", [0, 1])
def test_a_silent_sibling_is_named_by_all_others_within_patience(passive: int) -> None:
    group = Group(3, passive)
    group.net.faults["a1"] = silent

    async def main() -> tuple[dict[PeerId, Any], float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        return await group.run("a0", "a2"), loop.time() - began

    results, seconds = virtual(main())
    assert {p: r.peer for p, r in results.items()} == {"a0": "a1", "a2": "a1"}
    assert seconds == pytest.approx(PATIENCE_S, abs=0.1)
    group.check_nothing_left()


def test_a_passive_replica_gives_up_too() -> None:
    group = Group(1, 1)
    group.net.faults["a0"] = silent
    results = virtual(group.run("p1"))
    assert results["p1"].peer == "a0"
    group.check_nothing_left()


def changed(kind: str, change: Callable[[ReduceHeader, Payload], tuple[ReduceHeader, Payload]], me: PeerId) -> Fault:
    def fault(to: PeerId, header: ReduceHeader, payload: Payload) -> list[tuple[PeerId, ReduceHeader, Payload, float]]:
        if header.kind == kind:
            header, payload = change(header, payload)
        return [(me, header, payload, 0.01)]

    return fault


CHANGES: dict[str, Callable[[ReduceHeader, Payload], tuple[ReduceHeader, Payload]]] = {
    "too short": lambda h, p: (h, encode(decode(p)[:-1], p.spec.codec)),
    "too long": lambda h, p: (h, encode(np.append(decode(p), np.float32(1)), p.spec.codec)),
    "another shape": lambda h, p: (h, Payload(TensorSpec(p.spec.codec, (p.spec.shape[0], 1)), p.data)),
    "another codec": lambda h, p: (h, encode(decode(p), "bf16")),
    "not finite": lambda h, p: (h, encode(decode(p) * np.float32(np.inf), p.spec.codec)),
    "elsewhere": lambda h, p: (replace(h, first=h.first + 1), p),
    "outside": lambda h, p: (replace(h, first=1 << 40), p),
    "before": lambda h, p: (replace(h, first=-1), p),
    "another step": lambda h, p: (replace(h, step=h.step + 1), p),
    "another stage": lambda h, p: (replace(h, stage=h.stage + 1), p),
    "long ago": lambda h, p: (replace(h, step=0), p),
}


BAD_TENSORS = ["too short", "another shape", "not finite"]


@pytest.mark.parametrize("name", CHANGES)
def test_a_bad_part_is_blamed_on_its_sender(name: str) -> None:
    group = Group(3, 0)
    group.net.faults["a1"] = changed("part", CHANGES[name], "a1")
    with np.errstate(invalid="ignore"):
        results = virtual(group.run("a0", "a1", "a2"))
    assert {results[p].peer for p in ("a0", "a2")} == {"a1"}
    if name in BAD_TENSORS:
        assert all(isinstance(results[p], BadTensorError) for p in ("a0", "a2")), "so that it can be counted"
    for peer in group.peers:
        group[peer].reducer.close()
        assert group[peer].pool.num_live == 0


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_a_bad_sum_is_blamed_on_its_sender(name: str) -> None:
    group = Group(2, 1)
    group.net.faults["a1"] = changed("sum", CHANGES[name], "a1")
    with np.errstate(invalid="ignore"):
        results = virtual(group.run())
    assert {p: r.peer for p, r in results.items() if isinstance(r, PeerError)} == {"a0": "a1", "p2": "a1"}


def test_a_stranger_cannot_stand_in_for_a_sibling() -> None:
    group = Group(2, 0)
    group.net.faults["a1"] = lambda to, h, p: [("x", h, p, 0.01)]
    assert virtual(group.run("a0"))["a0"].peer == "a1"


@pytest.mark.parametrize(("far", "kind"), [("p2", "sum"), ("a1", "part")])
def test_a_send_that_fails_names_the_receiver(far: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who only is to have the sum keeps nobody else from having it."""
    group = Group(2, 1)

    async def send_payload(peer: PeerId, header: ReduceHeader, handle: int) -> None:
        if peer == far:
            raise PeerError(far, "connection refused")
        await Toy.send_payload(group["a0"], peer, header, handle)

    monkeypatch.setattr(group["a0"], "send_payload", send_payload)
    results = virtual(group.run())
    if kind == "part":
        assert results["a0"].peer == far
    else:
        assert [error.peer for error in results["a0"][2]] == [far]
        assert results["a0"][:2] == results["a1"][:2]
        assert results["p2"].peer == "a0", "it says itself that something did not come"
    group.check_nothing_left()


def test_a_sum_that_begins_anew_takes_nothing_of_the_one_before() -> None:
    """One member of three is lost in the middle of it; the others sum once more, with what they have accumulated since."""
    group = Group(3, 0)

    async def main() -> dict[PeerId, Any]:
        before = group.command
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(group[p].reducer.run(before)) for p in ("a0", "a1")]
            await asyncio.sleep(0.05)
            for peer, task in zip(("a0", "a1"), running, strict=True):
                task.cancel()
                group[peer].reducer.begin_anew(StopReduce(STAGE, STEP, ATTEMPT, 1))
                group[peer].executor.sum[:] = np.nan
                group[peer].executor.gradient += 1.0
        group.command = replace(before, members=before.members[:2], sum_number=1)
        old = ReduceHeader(BALLOT, STEP, ATTEMPT, STAGE, "part", 0, 1)
        group["a0"].take("a1", old, encode(np.ones(1, "<f4"), "f32"))
        return await group.run("a0", "a1")

    results = virtual(main())
    assert len(set(results.values())) == 1
    expected = group["a0"].executor.gradient + group["a1"].executor.gradient
    for peer in ("a0", "a1"):
        assert (group[peer].executor.sum == expected).all()
        group[peer].reducer.discard(STAGE, STEP, ATTEMPT)
    assert all(group[peer].pool.num_live == 0 for peer in ("a0", "a1"))


# ---- nothing is left ----


@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05])
def test_a_cancelled_reduce_leaves_nothing(after_s: float) -> None:
    group = Group(3, 1)

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(group[p].reducer.run(group.command)) for p in group.peers]
            await asyncio.sleep(after_s)
            for peer, task in zip(group.peers, running, strict=True):
                task.cancel()
                group[peer].reducer.discard(STAGE, STEP, ATTEMPT)
            await asyncio.sleep(1.0)
            assert all(task.done() for task in running)
        assert len(asyncio.all_tasks()) == 1

    virtual(main())
    group.check_nothing_left()


def test_a_piece_that_comes_together_with_the_end_of_patience_is_not_lost() -> None:
    """Both timers fire in one round of the loop: the waiter has its result and is cancelled all the same."""
    group = Group(2, 0, num_elements=1)

    async def main() -> Any:
        loop, a0 = asyncio.get_running_loop(), group["a1"]
        part = encode(np.ones(1, "<f4"), "f32")
        header = ReduceHeader(BALLOT, STEP, ATTEMPT, STAGE, "part", 0, 1)
        loop.call_at(loop.time() + PATIENCE_S - 1e-10, a0.take, "a0", header, part)
        return await group.run("a1")

    result = virtual(main())["a1"]
    assert isinstance(result, PeerError)
    group.check_nothing_left()


def test_what_comes_after_the_end_is_released() -> None:
    group = Group(2, 0)
    group[group.peers[0]].reducer.discard(STAGE, STEP, ATTEMPT)
    for attempt in (1, ATTEMPT):
        header = ReduceHeader(BALLOT, STEP, attempt, STAGE, "part", 0, 3)
        group["a0"].take("a1", header, encode(np.ones(3, "<f4"), "f32"))
    assert group["a0"].pool.num_live == 0
    group["a0"].take("a1", replace(header, attempt=ATTEMPT + 1), encode(np.ones(3, "<f4"), "f32"))
    assert group["a0"].pool.num_live == 1, "the next attempt's is kept"


def test_early_pieces_have_bounded_room() -> None:
    group = Group(2, 0)
    for n in range(1000):
        header = ReduceHeader(BALLOT, STEP, ATTEMPT + n, STAGE, "part", n % 23, 3)
        group["a0"].take("a1", header, encode(np.ones(3, "<f4"), "f32"))
    assert group["a0"].pool.num_bytes <= 8 * 23
    assert len(group["a0"].reducer._boxes) <= 8 * 23 / 12


def test_a_stage_that_is_not_held_has_no_room() -> None:
    group = Group(2, 0)
    group["a0"].reducer.seat(STAGE, 0)
    group["a0"].take("a1", ReduceHeader(BALLOT, STEP, ATTEMPT, STAGE, "part", 0, 3), encode(np.ones(3, "<f4"), "f32"))
    assert group["a0"].pool.num_live == 0

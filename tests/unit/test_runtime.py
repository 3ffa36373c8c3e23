"""The runtime on toy ports and virtual time: what ports do becomes events, faults of peers do not end it, all others do."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from node.ports import BadTensorError, Lease, PeerError, UnusableError
from node.runtime import TOMBSTONE_S, Observers, Runtime
from node.sim.loop import run_virtual
from protocol.commands import (
    Apply,
    Command,
    Compute,
    Connect,
    CreateSeat,
    Discard,
    DropSeat,
    Exit,
    Introduce,
    Note,
    Reduce,
    Release,
    Say,
    SendMessage,
    SendPayload,
    Work,
)
from protocol.events import (
    Applied,
    CommandFailed,
    ComputeDone,
    Event,
    LeasesSeen,
    MessageReceived,
    PayloadArrived,
    Reduced,
    SeatCreated,
    Tick,
)
from protocol.ids import Member, PeerId
from protocol.messages import (
    Contact,
    Goodbye,
    Heartbeat,
    Message,
    OpenStep,
    Order,
    PayloadHeader,
    PipeHeader,
    ReduceHeader,
    SeatWork,
    Standing,
    StartReduce,
    VoidStep,
)
from tests.tools.core import Core, a_manifest, holders
from tests.tools.toy_ports import BALLOT, HEADER, ROWS, Defect, Life, a_payload

# ---- outcomes ----


def test_every_command_with_an_outcome_brings_it() -> None:
    life = Life()

    async def script(life: Life) -> None:
        life.command(CreateSeat(1, 0))
        await asyncio.sleep(0.1)
        given = life.pool.put(a_payload())
        life.command(Compute(Work("forward", 1, 1, 1, 0), given, "you"), Release(given))
        life.command(Reduce(BALLOT, 1, 1, 1, ROWS[:1]), Apply(1, 1, 1, 1.0, 0.1, "next"))
        await asyncio.sleep(0.5)
        (done,) = life.state.of(ComputeDone)
        life.command(SendPayload("you", HEADER, done.handle), Release(done.handle))

    assert life.go(script) == Exit(0, "the end")
    assert [(e.stage, e.digest) for e in life.state.of(SeatCreated)] == [(1, "d0")]
    assert [(e.digest, e.squared_norm) for e in life.state.of(Reduced)] == [("sum", 4.0)]
    assert [(e.state_id, e.digest, e.optimizer_age) for e in life.state.of(Applied)] == [("next", "d1", 1)]
    assert not life.state.of(CommandFailed)
    assert life.pool.num_live == 0


WORK: dict[str, tuple[str, Command]] = {
    "compute": ("compute", Compute(Work("embed", 1, 1, 1, 3), 0, "you")),
    "send": ("send_payload", SendPayload("you", HEADER, 1)),
    "reduce alone": ("reduced", Reduce(BALLOT, 1, 1, 1, ROWS[:1])),
    "reduce reads": ("gradient_range", Reduce(BALLOT, 1, 1, 1, ROWS)),
    "reduce sends": ("send_payload", Reduce(BALLOT, 1, 1, 1, ROWS)),
}


@pytest.mark.parametrize("name", ["compute", "reduce alone"])
def test_a_refused_tensor_is_told_once_and_as_such(name: str) -> None:
    port, command = WORK[name]
    life = Life(fail={port: BadTensorError("", "not finite", "not_finite")})
    seen: list[PeerError] = []
    life.runtime.observers = Observers(on_fault=seen.append)

    async def script(life: Life) -> None:
        life.command(CreateSeat(1, 0))
        await asyncio.sleep(0.1)
        life.command(command)
        await asyncio.sleep(1.0)

    life.go(script)
    assert [error.kind for error in seen if isinstance(error, BadTensorError)] == ["not_finite"]


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("blamed", ["", "bad"])
def test_a_peers_fault_becomes_command_failed(name: str, blamed: str) -> None:
    port, command = WORK[name]
    life = Life(fail={port: PeerError(blamed, "a broken stream")})

    async def script(life: Life) -> None:
        life.command(CreateSeat(1, 0))
        await asyncio.sleep(0.1)
        handle = life.pool.put(a_payload())
        assert handle == 1
        life.command(command, Release(handle))
        await asyncio.sleep(1.0)

    assert life.go(script).code == 0
    (failed,) = life.state.of(CommandFailed)
    told = "" if name.startswith("reduce") else "you"
    assert (failed.peer, failed.reason) == (blamed or told, "a broken stream")
    assert (failed.stage, failed.step, failed.attempt) == (1, 1, 1)
    assert failed.microbatch == {"compute": 3, "send": 0}.get(name, -1)
    assert life.pool.num_live == 0


ANY: dict[str, tuple[str, Command]] = {
    **WORK,
    "create": ("create", CreateSeat(1, 0)),
    "apply": ("apply", Apply(1, 1, 1, 1.0, 0.1, "x")),
    "discard": ("discard", Discard(1, 1, 1)),
    "drop": ("drop", DropSeat(1)),
}


@pytest.mark.parametrize("error", [Defect("ours"), UnusableError(2, "out of memory")], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("name", ANY)
def test_any_other_exception_ends_the_node(name: str, error: Exception) -> None:
    port, command = ANY[name]
    life = Life(fail={} if name == "create" else {port: error})

    async def script(life: Life) -> None:
        life.command(CreateSeat(1, 0))
        await asyncio.sleep(0.1)
        life.world.fail[port] = error
        life.pool.put(a_payload())
        life.command(command, Release(1))
        await asyncio.sleep(1.0)

    with pytest.raises(BaseExceptionGroup) as caught:
        life.go(script)
    found = caught.value.subgroup(type(error))
    assert found is not None
    rest = caught.value.split(type(error))[1]
    assert rest is None, f"and nothing else: {rest!r}"
    seen = len(life.state.seen)
    life.world.message("you", 1, Goodbye(Member("you", 1), ""))
    life.world.payload("you", HEADER, life.pool.put(a_payload()), 8)
    assert len(life.state.seen) == seen, "a broken node decides nothing"


def test_a_message_in_the_round_of_a_defect_starts_nothing() -> None:
    """The task group is shutting down then: a task more would be a second, misleading error."""
    life = Life(fail={"compute": Defect("ours")}, wait={"compute": 1.0})

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            group.create_task(life.runtime.run())
            await asyncio.sleep(0.5)
            for _ in range(2):
                life.command(Compute(Work("embed", 1, 1, 1, 0), 0, "you"))
            for delay in (1.0 - 1e-10, 1.0, 1.0 + 1e-10):
                loop.call_later(delay, life.command, Compute(Work("embed", 1, 1, 1, 1), 0, "you"))

    with pytest.raises(BaseExceptionGroup) as caught:
        run_virtual(main(), limit_s=60)
    assert caught.value.split(Defect)[1] is None


@pytest.mark.parametrize("port", ["publish", "leases"])
def test_a_defect_of_the_directory_ends_the_node(port: str) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        Life(fail={port: Defect("ours")}).go()
    assert caught.value.subgroup(Defect)


def test_a_decision_that_raises_ends_the_node() -> None:
    def raise_it(event: Event) -> list[Command]:
        raise Defect("undecided")

    with pytest.raises(BaseExceptionGroup) as caught:
        Life(raise_it).go()
    assert caught.value.subgroup(Defect)


# ---- the end ----


def test_exit_cancels_all_work_and_leaves_nothing() -> None:
    slow = dict.fromkeys(["compute", "create", "apply", "send_payload", "gradient_range"], 1000.0)
    life = Life(wait=slow)

    async def script(life: Life) -> None:
        life.runtime._reducer.seat(1, 4)
        given = life.pool.put(a_payload())
        life.command(
            CreateSeat(2, 0),
            Compute(Work("forward", 1, 1, 1, 0), given, "you"),
            SendPayload("you", HEADER, given),
            Reduce(BALLOT, 1, 1, 1, ROWS),
            Apply(1, 1, 1, 1.0, 0.1, "x"),
            Release(given),
        )
        life.world.payload("you", ReduceHeader(BALLOT, 1, 1, 1, "part", 0, 2), life.pool.put(a_payload()), 8)
        await asyncio.sleep(0.1)

    assert life.go(script).code == 0
    assert life.pool.num_live == 0


def test_what_comes_after_the_end_is_released() -> None:
    life = Life()
    life.go()
    for header in (HEADER, ReduceHeader(BALLOT, 1, 1, 1, "part", 0, 2)):
        life.world.payload("you", header, life.pool.put(a_payload()), 8)
    seen = len(life.state.seen)
    life.world.message("you", 1, Heartbeat(1, BALLOT, "h", 0, 0))
    assert life.pool.num_live == 0
    assert len(life.state.seen) == seen


def test_a_tombstone_is_the_last_lease() -> None:
    life = Life()
    life.go()
    assert [lease.leaving for lease in life.world.leases_published] == [False, True]


def test_a_directory_that_hangs_does_not_hold_the_end_up() -> None:
    life = Life(wait={"publish": 1e6})

    async def main() -> float:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            group.create_task(life.runtime.run())
            await asyncio.sleep(1)
            began = loop.time()
            life.runtime.leave("now")
        return loop.time() - began

    assert run_virtual(main(), limit_s=60) == pytest.approx(TOMBSTONE_S, abs=0.1)


def test_a_node_may_be_asked_to_go_before_it_runs() -> None:
    life = Life()

    async def main() -> Exit:
        life.runtime.leave("a signal during start-up")
        return await life.runtime.run()

    assert run_virtual(main(), limit_s=60) == Exit(0, "a signal during start-up")
    assert life.world.leases_published[-1].leaving


def test_cancelling_the_runtime_cancels_everything() -> None:
    life = Life(wait={"compute": 1000.0})

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(life.runtime.run())
        await asyncio.sleep(1)
        life.command(Compute(Work("embed", 1, 1, 1, 0), 0, ""))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main(), limit_s=60)


# ---- the rest of the table ----


def test_a_discard_cancels_the_reduce_and_forgets_its_pieces() -> None:
    life = Life()

    async def script(life: Life) -> None:
        life.command(CreateSeat(1, 0))
        await asyncio.sleep(0.1)
        life.command(Reduce(BALLOT, 1, 1, 1, ROWS))
        life.world.payload("you", ReduceHeader(BALLOT, 1, 1, 1, "sum", 2, 2), life.pool.put(a_payload()), 8)
        await asyncio.sleep(0.5)
        life.command(Discard(1, 1, 1))
        await asyncio.sleep(0.1)
        assert life.pool.num_live == 0
        assert not life.runtime._reducing

    life.go(script)
    assert not life.state.of(Reduced)
    assert not life.state.of(CommandFailed)


def test_pieces_of_strangers_are_released() -> None:
    life = Life()

    async def script(life: Life) -> None:
        life.runtime._reducer.seat(1, 4)
        life.world.payload("stranger", ReduceHeader(BALLOT, 1, 1, 1, "part", 0, 2), life.pool.put(a_payload()), 8)
        assert life.pool.num_live == 0

    life.go(script)


def test_orders_pass_only_with_the_organisers_signature_and_refusals_do_not_fill_the_disk() -> None:
    life = Life()
    life.runtime.verify = lambda order: order.signature == "good"

    async def script(life: Life) -> None:
        for n in range(1000):
            life.world.message("you", 1, Order("stop", n, "bad"))
        life.world.message("you", 1, Standing(BALLOT, "training", "", 1, -1, 0.0, 0, Order("stop", 2, "bad")))
        life.world.message("you", 1, Order("pause", 1, "good"))
        life.world.message("you", 1, Standing(BALLOT, "paused", "", 1, -1, 0.0, 0, Order("pause", 1, "good")))
        life.world.message("you", 1, Standing(BALLOT, "waiting", "", 1, -1, 0.0))

    life.go(script)
    passed = [e.message for e in life.state.of(MessageReceived)]
    assert [m.action if isinstance(m, Order) else m.phase for m in passed] == ["pause", "paused", "waiting"]
    assert [note[0] for note in life.world.notes] == ["refused"]


def test_observers_and_sinks_see_what_passes() -> None:
    life = Life()
    seen: list[object] = []
    life.runtime.observers = Observers(on_event=seen.append, on_command=seen.append, on_published=seen.append)

    async def script(life: Life) -> None:
        life.command(
            Note("lost", {"stage": 1}),
            Say("hello"),
            Introduce("you", "x:1"),
            SendMessage("you", Order("stop", 1, "")),
            Connect("you"),
        )

    life.go(script)
    assert ("lost", {"stage": 1}) in life.world.notes
    assert {"introduce", "send", "connect"} <= set(life.world.calls)
    assert any(isinstance(x, Tick) for x in seen)
    assert Say("hello") in seen
    assert any(isinstance(x, float) for x in seen)


def test_the_directory_names_the_coordinator_with_the_highest_ballot() -> None:
    def lease(peer: str, term: int, **changes: Any) -> Lease:
        fields = {"coordinator": True, "leaving": False} | changes
        return Lease(peer, 1, peer, f"{peer}:1", "", (), term, fields["coordinator"], fields["leaving"], 1e12)

    found: list[LeasesSeen] = []

    def keep(event: Event) -> list[Command]:
        if isinstance(event, LeasesSeen):
            found.append(event)
        return []

    leases = [lease("a", 1), lease("b", 3), lease("c", 9, coordinator=False), lease("d", 9, leaving=True), lease("me", 99)]
    Life(keep, directory_holds=leases).go()
    assert found[0].coordinator
    assert found[0].coordinator.peer == "b"
    assert [c.peer for c in found[0].others] == ["a", "b", "c"]


# ---- fuzz ----


FLAKY = ["compute", "send_payload", "gradient_range", "sum_range", "install_range"]


def test_faults_of_peers_at_random_never_end_a_node(seed: int) -> None:
    """A real NodeState that holds stage 1 of 2 x 2, its ports failing at random with PeerErrors."""
    seen: Counter[str] = Counter()
    for round_ in range(30):
        rng = random.Random(f"{seed} {round_}")
        life = Life()
        core = Core(a_manifest(), "p1.0", holders(a_manifest(), 2))
        count = Observers(on_event=lambda event: seen.update([type(event).__name__]))
        life.runtime = Runtime(life.runtime.ports, core.state, observers=count)
        life.runtime._reducer.seat(1, 4)

        async def script(life: Life, core: Core = core, rng: random.Random = rng) -> None:
            for attempt in range(1, 9):
                life.world.fail = {p: PeerError(rng.choice(("", "p1.1")), "x") for p in FLAKY if rng.random() < 0.05}
                life.world.wait = {p: rng.choice((0.0, 0.01, 0.3)) for p in FLAKY}
                await one_attempt(life, core, rng, attempt)

        assert life.go(script).code == 0
        assert life.pool.num_live == 0, f"round {round_}"
    assert min(seen[name] for name in ("ComputeDone", "CommandFailed", "Reduced", "PayloadArrived")) > 3, seen


async def one_attempt(life: Life, core: Core, rng: random.Random, attempt: int) -> None:
    """What the coordinator and the neighbours send in an attempt, in order or nearly, now and then something missing."""
    chain, world = core.state.chain, life.world
    work = (SeatWork(1, "active", 0, (0, 2)),)
    owners, contacts = (0, 1, 0, 1), (Contact("p1.1", "x:1"),)
    pieces = [ReduceHeader(BALLOT, 1, attempt, 1, "part", 0, 2), ReduceHeader(BALLOT, 1, attempt, 1, "sum", 2, 2)]
    begin = OpenStep(BALLOT, 1, attempt, chain.head, work, (), (), ("p1.1",))
    facts: list[tuple[PeerId, Message | PayloadHeader]] = [("lead", begin)]
    for kind, microbatch in (("forward", 0), ("forward", 2), ("backward", 0), ("backward", 2)):
        header = core.header(kind, microbatch, 1, attempt=attempt)
        facts.append((header.route.hops[2 if kind == "backward" else 0].peer, header))
    facts += [("lead", StartReduce(BALLOT, 1, attempt, 1, owners, (), contacts)), *(("p1.1", piece) for piece in pieces)]
    if rng.random() < 0.5:
        facts.append(("lead", VoidStep(BALLOT, 1, attempt, "x")))
    for peer, fact in facts:
        for _ in range(rng.choice((1, 1, 1, 1, 1, 1, 1, 2, 2, 0))):
            if isinstance(fact, PipeHeader | ReduceHeader):
                world.payload(peer, fact, life.pool.put(a_payload()), 8)
            else:
                world.message(peer, 1, fact)
            await asyncio.sleep(rng.choice((0.0, 0.4, 0.7)))


def test_events_of_an_ended_computation_carry_their_payload() -> None:
    life = Life()

    async def script(life: Life) -> None:
        life.world.payload("you", HEADER, life.pool.put(a_payload()), 8)
        (arrived,) = life.state.of(PayloadArrived)
        life.command(Compute(Work("embed_backward", 0, 1, 1, 0), arrived.handle, "you"), Release(arrived.handle))
        await asyncio.sleep(0.1)
        assert [e.handle for e in life.state.of(ComputeDone)] == [0]

    life.go(script)
    assert life.pool.num_live == 0

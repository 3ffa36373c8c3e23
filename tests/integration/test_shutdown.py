"""INT, TERM and HUP at any moment, kill -9, a dead p2pd: the node is gone in time, says what is to be said, leaves nothing.

Exit code, silence about tracebacks, children and ports are `Ending.check`'s.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from node.demo.process import NodeProcess
from protocol.invite import Invite, mint
from tests.integration.ends import Ending, claimed, end_all_at_once, gone, observer, p2pd_of
from tests.integration.seen import metric, says, seat_phase
from tests.tools.material import write_manifest
from tests.tools.swarm import Swarm, swarm, wait_for

pytestmark = pytest.mark.timeout(240)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STRANGER = "QmNnooDu7bfjPFoTZYxMNLWUQJyrVwtbZg5gBMjTezGAJN"
STEP_LIMIT_S = 90.0


# ---- while it starts


@pytest.fixture
def unreachable_invite() -> Iterator[str]:
    """Two peers: one port that nobody listens on, one that takes connections and never says a word."""
    with socket.socket() as closed, socket.socket() as silent:
        for each in (closed, silent):
            each.bind(("127.0.0.1", 0))
        silent.listen(64)
        ports = [each.getsockname()[1] for each in (closed, silent)]
        addresses = tuple(f"/ip4/127.0.0.1/tcp/{port}/p2p/{STRANGER}" for port in ports)
        yield mint(Invite(addresses, "0" * 64, "nowhere", "0" * 64))


def _reading_settings(node: NodeProcess) -> bool:
    return "pydantic_core" in Path(f"/proc/{node.process.pid}/maps").read_text()


def _importing(node: NodeProcess) -> bool:
    """The state directory is taken; the slow imports come next."""
    return (node.state_dir / "lock").exists()


def _starting_p2pd(node: NodeProcess) -> bool:
    return bool(psutil.Process(node.process.pid).children())


def _dialling(node: NodeProcess) -> bool:
    return says(node, "cannot enter the directory by")


@pytest.mark.parametrize("moment", [_reading_settings, _importing, _starting_p2pd, _dialling])
def test_signal_while_it_starts(tmp_path: Path, unreachable_invite: str, moment: Callable[[NodeProcess], bool]) -> None:
    with swarm(tmp_path) as made:
        endings = []
        for number in SIGNALS:
            made.join(unreachable_invite, "--stage", "1", name=number.name)
        for node, number in zip(made.nodes, SIGNALS, strict=True):
            wait_for(f"{node.name} is there", lambda node=node: moment(node), 60, made.situation)
            endings.append(Ending(node))
            endings[-1].send(number)
        for ending, number in zip(endings, SIGNALS, strict=True):
            ending.check({128 + number})
        print(f"{moment.__name__}: ended within {max(ending.seconds for ending in endings):.2f} s")


# ---- while it waits


async def test_leaving_while_others_are_waited_for(tmp_path: Path) -> None:
    """The directory and the coordinator hear of it at once. Where the directory hangs, the node does not; and a second signal
    does not wait for the tombstone's time to be over."""
    path = write_manifest(tmp_path, num_block_stages=2, timing__heartbeat_s=0.5)
    with swarm(tmp_path) as made:
        first = made.start(path, "--stage", "0")
        invite = (await asyncio.to_thread(made.running, first)).invite
        second, third = (made.join(invite, "--stage", "2", name=name) for name in ("second", "third"))
        peers = {(await asyncio.to_thread(made.running, node)).peer for node in made.nodes}
        async with observer(invite, tmp_path / "observer") as directory:
            await until("all are seen", lambda: seen(directory, peers))
            await asyncio.to_thread(leave_in_order, made, second)
            assert await claimed(directory) == peers - {made.running(second).peer}, "no tombstone"
            await asyncio.to_thread(leave_in_spite_of_the_directory, third)
            await asyncio.to_thread(leave_in_a_hurry, made, first)


def leave_in_order(made: Swarm, node: NodeProcess) -> None:
    first = made.nodes[0]
    wait_for("both wishes are known", lambda: says(first, "stage 1 needs a node"), 30, made.situation)
    ending = Ending(node)
    ending.send(signal.SIGHUP)
    assert ending.check() == 0
    print(f"HUP while waiting: ended within {ending.seconds:.2f} s")


def leave_in_spite_of_the_directory(node: NodeProcess) -> None:
    p2pd_of(node).suspend()
    ending = Ending(node)
    ending.send(signal.SIGTERM)
    assert ending.check() == 0
    print(f"TERM with a hanging p2pd: ended within {ending.seconds:.2f} s")


def leave_in_a_hurry(made: Swarm, node: NodeProcess) -> None:
    p2pd_of(node).suspend()
    ending = Ending(node)
    ending.send(signal.SIGTERM)
    wait_for("it is leaving", lambda: made.status(node).get("phase") == "leaving", 5, made.situation)
    ending.send(signal.SIGINT)
    assert ending.check({128 + signal.SIGINT}) == 130
    assert ending.seconds < 1.0


async def until(what: str, condition: Callable[[], object], limit_s: float = 30.0) -> None:
    """Polls a condition that asks the directory."""
    async with asyncio.timeout(limit_s):
        while not await condition():  # noqa: ASYNC110 - what it asks tells nobody when it changes
            await asyncio.sleep(0.05)


async def seen(directory: object, peers: set[str]) -> bool:
    return peers <= await claimed(directory)


# ---- while it trains


async def test_ends_of_a_training_swarm(tmp_path: Path) -> None:
    """One swarm, whose nodes end one after the other; steps and evaluations take about a second or more."""
    path = write_manifest(
        tmp_path,
        num_block_stages=2,
        max_steps=100_000,
        batch__global_samples=64,
        batch__max_in_flight=4,
        timing__heartbeat_s=0.5,
        evaluation__every_steps=4,
        evaluation__num_microbatches=150,
    )
    with swarm(tmp_path) as made:
        first = made.start(path, "--stage", "0")
        invite = (await asyncio.to_thread(made.running, first)).invite
        ones = [made.join(invite, "--stage", "1", name=f"one{i}") for i in range(3)]
        for node in ones:
            await asyncio.to_thread(made.running, node)
        two = made.join(invite, "--stage", "2", name="two")
        await asyncio.to_thread(made.wait_step, 1, STEP_LIMIT_S)
        async with observer(invite, tmp_path / "observer") as directory:
            await asyncio.to_thread(p2pd_is_restarted, made, ones[0])
            await until("it still is in the directory", lambda: seen(directory, {made.running(ones[0]).peer}))
            await asyncio.to_thread(leave_in_a_step, made, ones[1])
            assert made.running(ones[1]).peer not in await claimed(directory), "no tombstone"
        await asyncio.to_thread(p2pd_cannot_be_kept, made, ones[2])
        await asyncio.to_thread(leave_at_evaluation, made, [first, ones[0], two])


def p2pd_is_restarted(made: Swarm, node: NodeProcess) -> None:
    before = p2pd_of(node)
    before.kill()
    wait_for("p2pd is back", lambda: gone(before) and p2pd_of(node).pid != before.pid, 30, made.situation)
    assert says(node, "p2pd died"), made.situation()
    goes_on(made)


def leave_in_a_step(made: Swarm, node: NodeProcess) -> None:
    wait_for("a step is open", lambda: seat_phase(made, node) == "working", STEP_LIMIT_S, made.situation)
    ending = Ending(node)
    ending.send(signal.SIGTERM)
    assert ending.check() == 0
    print(f"TERM in a step: ended within {ending.seconds:.2f} s")
    goes_on(made)
    told = [event for event in made.events(made.nodes[0], "left", "lost") if event["peer"] == made.running(node).peer]
    assert {event["type"] for event in told} == {"left"}, "it left in order, between two steps: nothing was lost"
    stages = [event["stage"] for event in told]  # it may have kept a copy of stage 0 besides
    assert 1 in stages and len(set(stages)) == len(stages), told


def p2pd_cannot_be_kept(made: Swarm, node: NodeProcess) -> None:
    """Killed again and again: the node says so and ends, the others go on."""
    ending = Ending(node)
    killed: set[int] = set()

    def kill_again() -> bool:
        for child in psutil.Process(node.process.pid).children() if node.exit_code is None else []:
            if child.name() == "p2pd" and child.pid not in killed:
                killed.add(child.pid)
                child.kill()
        return node.exit_code is not None

    wait_for("the node gives up", kill_again, 60, made.situation)
    assert ending.check({3}) == 3
    last = [line for line in node.last_words() if line.startswith("regrow: ")]
    assert len(last) == 1, made.situation()
    assert "p2pd, the network process of the directory, died" in last[0], last
    goes_on(made)


def leave_at_evaluation(made: Swarm, nodes: list[NodeProcess]) -> None:
    seen = [evaluated_bytes(made, nodes[-1])]

    def arriving() -> bool:
        seen.append(evaluated_bytes(made, nodes[-1]))
        return seen[-1] > seen[-2]

    wait_for("an evaluation", arriving, STEP_LIMIT_S, made.situation)
    assert end_all_at_once(nodes, signal.SIGINT) == [0] * len(nodes)


def evaluated_bytes(made: Swarm, node: NodeProcess) -> float:
    """Held-out activations that the node has received so far."""
    return metric(made, node, "regrow_wire_bytes_total", kind="evaluate", direction="received")


def goes_on(made: Swarm) -> None:
    made.wait_step(made.status(made.nodes[0])["step"] + 2, STEP_LIMIT_S)

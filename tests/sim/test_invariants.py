"""The invariants can fail: each is broken on purpose, in a swarm of real nodes of which one misbehaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from node.sim.invariants import Invariants
from node.sim.machine import BrokenError, Pool
from node.sim.nodes import Decider, NodeSpec, SimNode, real_state
from node.sim.ownership import Ownership
from node.sim.scenario import make_scenario
from node.sim.trial import Trial
from protocol.commands import Apply, Command, Compute, Note, Reduce, Release, SendMessage
from protocol.events import Event
from protocol.ids import Ballot, Member, RecordId
from protocol.manifest import Manifest
from protocol.messages import Decide, OpenStep, SeatWork
from protocol.records import Roster

Twist = Callable[[Command], list[Command]]
SEED = next(
    seed
    for seed in range(100)
    if make_scenario(seed).manifest.start_replicas > 1 and make_scenario(seed).strike.kind == "crash"
)


class Twisted:
    """A real node whose commands are tampered with."""

    def __init__(self, state: Decider, twist: Twist) -> None:
        self._state = state
        self._twist = twist

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def handle(self, event: Event, now: float) -> list[Command]:
        return [out for command in self._state.handle(event, now) for out in self._twist(command)]


def run_twisted(twist: Twist, peer: str = "") -> None:
    """Live through a swarm in which the last node (or the named one) is tampered with."""
    scenario = make_scenario(SEED)
    bad = peer or scenario.nodes[-1][1].member.peer

    def make(manifest: Manifest, spec: NodeSpec, address: str) -> Decider:
        state = real_state(manifest, spec, address)
        return Twisted(state, twist) if spec.member.peer == bad else state

    Trial(scenario, make).run()


def test_the_swarm_holds_untouched() -> None:
    run_twisted(lambda command: [command])


def double_note(command: Command) -> list[Command]:
    return [command] * (1 + (isinstance(command, Note) and command.type == "accumulated"))


def leave_out(command: Command) -> list[Command]:
    if isinstance(command, Compute) and "backward" in command.work.op:
        return [replace(command, work=replace(command.work, accumulate=False))]
    return [command]


def other_rate(command: Command) -> list[Command]:
    return [replace(command, learning_rate=0.5) if isinstance(command, Apply) else command]


def other_state(command: Command) -> list[Command]:
    return [replace(command, state_id="0" * 32) if isinstance(command, Apply) else command]


def never_release(command: Command) -> list[Command]:
    return [] if isinstance(command, Release) else [command]


def release_twice(command: Command) -> list[Command]:
    return [command] * (1 + isinstance(command, Release))


def older_attempt(command: Command) -> list[Command]:
    late = isinstance(command, Reduce) and command.step > 2
    return [command, replace(command, step=1)] if late and isinstance(command, Reduce) else [command]


def no_contributors(command: Command) -> list[Command]:
    if isinstance(command, Note) and command.type == "committed":
        return [Note(command.type, command.fields | {"contributors": {}})]
    return [command]


@pytest.mark.parametrize(
    ("twist", "what"),
    [
        (double_note, "S2.*noted 2 times"),
        (leave_out, "S2.*brings"),
        (other_rate, "S3"),
        (other_state, "S1"),
        (never_release, "payloads"),
        (release_twice, "once too often"),
        (older_attempt, "attempt .* after"),
        (no_contributors, "S2.*contributors"),
    ],
)
def test_a_misbehaving_node_is_noticed(twist: Twist, what: str) -> None:
    with pytest.raises(BrokenError, match=what):
        run_twisted(twist)


def test_deciding_without_a_quorum_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.proposal.is_quorum", lambda *_: True)
    with pytest.raises(BrokenError, match="of the voters"):
        run_twisted(lambda command: [command])


def test_a_node_that_raises_is_noticed() -> None:
    def fail(command: Command) -> list[Command]:
        raise KeyError("mine")

    with pytest.raises(BrokenError, match=r"raised KeyError: 'mine'"):
        run_twisted(fail)


def test_a_swarm_that_forgets_what_it_waits_for_is_noticed() -> None:
    """A node that never reports keeps every step from being finished: the trial does not mistake that for progress."""

    def mute(command: Command) -> list[Command]:
        kind = type(command.message).__name__ if isinstance(command, SendMessage) else ""
        return [] if kind == "ReducedReport" else [command]

    with pytest.raises(BrokenError, match="no fault yet"):
        run_twisted(mute)


# --- records, fed in directly


class Mute:
    """Decides nothing."""

    def handle(self, event: Event, now: float) -> list[Command]:
        return []


FOUNDER = Member("a", 1)


def watched() -> tuple[Invariants, SimNode, RecordId]:
    manifest = make_scenario(1).manifest
    watch = Invariants(manifest, FOUNDER)
    return watch, SimNode(NodeSpec(FOUNDER, "a", True), Mute(), "a:1", 0.0), watch.head


def decide(watch: Invariants, node: SimNode, **fields: Any) -> None:
    record = Roster(**({"parent": watch.head, "step": 0, "joins": (), "leaves": (), "voters": (FOUNDER,)} | fields))
    watch.command(node, SendMessage("b", Decide(Ballot(1, "a"), record, ())))


def test_two_records_with_one_parent_are_noticed() -> None:
    watch, node, genesis = watched()
    decide(watch, node)
    decide(watch, node, parent=genesis)  # the same one, sent to somebody else
    with pytest.raises(BrokenError, match="S1"):
        decide(watch, node, parent=genesis, step=1)


def test_a_record_out_of_nowhere_is_noticed() -> None:
    watch, node, _ = watched()
    with pytest.raises(BrokenError, match="does not follow the head"):
        decide(watch, node, parent="f" * 32)


def test_a_recovery_that_one_node_tells_of_twice_is_noticed() -> None:
    """A successor, who decides again what the one before said to nobody else, may."""
    watch, node, _ = watched()
    successor = SimNode(replace(node.spec, member=Member("b", 1)), node.state, "b:1", 0.0)
    told = Note("recovered", {"stage": 1, "step": 3, "peer": "c", "rung": "returned"})
    watch.command(node, told)
    watch.command(successor, told)
    with pytest.raises(BrokenError, match="told before"):
        watch.command(successor, told)


def test_half_of_the_voters_are_a_quorum_only_with_the_first() -> None:
    other = Member("b", 1)
    watch, node, _ = watched()
    decide(watch, node, voters=(other, FOUNDER))
    with pytest.raises(BrokenError, match="of the voters"):
        decide(watch, node)


def test_a_payload_is_not_used_after_its_release() -> None:
    pool = Pool()
    handle = pool.give()
    pool.hold(handle)
    pool.release(handle)
    pool.let_go(handle)
    with pytest.raises(BrokenError, match="after its Release"):
        pool.hold(handle)


def test_who_owned_what_is_forgotten_with_its_step() -> None:
    owners, ballot = Ownership(), Ballot(1, "c")
    for step in (3, 4):
        owners.told("a", OpenStep(ballot, step, 1, "", (SeatWork(2, "active", 0, (5,)),), (), (), (), step))
    owners.forget(4)
    assert owners.amendments == {(4, 1): 4}
    owners.accumulated(Member("a", 1), ballot, 4, 1, (2, 5))
    with pytest.raises(BrokenError, match="was given"):
        owners.accumulated(Member("a", 1), ballot, 3, 1, (2, 5))
    with pytest.raises(BrokenError, match="belongs to a"):
        owners.told("b", OpenStep(ballot, 4, 1, "", (SeatWork(2, "active", 0, (5,)),), (), (), (), 4))

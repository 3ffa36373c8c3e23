"""The simulated world itself: time, lanes, faults and payloads, with nodes that only write down what they see."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from node.sim.faults import Faults, Strike
from node.sim.heap import World
from node.sim.invariants import Invariants
from node.sim.network import Network, Weather
from node.sim.nodes import Decider, NodeSpec, SimNode
from node.sim.scenario import make_scenario
from node.sim.trial import Trial, run_seed
from protocol.commands import Command, Introduce, Note, PublishLease, Release, SendMessage, SendPayload
from protocol.events import CommandFailed, Event, LeasesSeen, MessageReceived, PayloadArrived, Tick
from protocol.ids import Ballot, Member
from protocol.manifest import Manifest
from protocol.messages import Hop, PipeHeader, RecordsWanted, Route

MANIFEST = make_scenario(1).manifest
ROUTE = Route(0, (Hop(0, "a"), Hop(1, "b"), Hop(0, "a")))
HEADER = PipeHeader(Ballot(1, "a"), 1, 1, "", "forward", 1, ROUTE)


class Recorder:
    """Writes events down; answers each with what the test prescribes."""

    def __init__(self, answer: Callable[[Event], list[Command]]) -> None:
        self.seen: list[tuple[float, Event]] = []
        self._answer = answer

    def handle(self, event: Event, now: float) -> list[Command]:
        self.seen.append((now, event))
        return self._answer(event)

    def of(self, kind: type) -> list[Event]:
        return [event for _, event in self.seen if isinstance(event, kind)]


def silent(_: Event) -> list[Command]:
    return []


class Pair:
    """Nodes a and b that know each other's address."""

    def __init__(self, faults: Faults | None = None, on_a: object = silent, on_b: object = silent) -> None:
        assert callable(on_a)
        assert callable(on_b)
        self.faults = faults or Faults()
        rng = random.Random(1)
        answers = {"a": on_a, "b": on_b}
        self.watch = Invariants(MANIFEST, Member("a", 1))
        network = Network(rng, self.faults.weather)

        def make(_manifest: Manifest, spec: NodeSpec, _address: str) -> Decider:
            return Recorder(answers[spec.member.peer])

        self.world = World(MANIFEST, rng, network, self.faults, self.watch, make)
        for peer in "ab":
            self.world.boot(NodeSpec(Member(peer, 1), peer, peer == "a"), 0.0)
        self.world.run(lambda: len(self.world.nodes) == 2, 1.0)
        for node in self.world.nodes.values():
            for other in self.world.nodes.values():
                node.addresses[other.peer] = other.address

    def __getitem__(self, peer: str) -> Recorder:
        state = self.world.nodes[peer].state
        assert isinstance(state, Recorder)
        return state

    def node(self, peer: str) -> SimNode:
        return self.world.nodes[peer]

    def do(self, peer: str, *commands: Command) -> None:
        self.world._execute(self.node(peer), commands)

    def pass_time(self, seconds: float) -> None:
        self.world.run(lambda: False, seconds)


def numbered(count: int) -> list[Command]:
    return [SendMessage("b", RecordsWanted(str(i))) for i in range(count)]


def heads(recorder: Recorder) -> list[str]:
    return [e.message.head for e in recorder.of(MessageReceived) if isinstance(e, MessageReceived)]  # type: ignore[union-attr]


def test_ticks_come_four_times_a_heartbeat_and_tell_who_was_heard() -> None:
    pair = Pair()
    pair.do("a", *numbered(1))
    pair.pass_time(4.0)
    ticks = pair["b"].of(Tick)
    assert 16 <= len(ticks) <= 17
    last = ticks[-1]
    assert isinstance(last, Tick)
    assert last.heard["a"] == pytest.approx(4.0, abs=0.5)


def test_the_directory_tells_about_the_coordinator_after_a_while() -> None:
    pair = Pair()
    pair.pass_time(8.0)
    seen = [e for e in pair["b"].of(LeasesSeen) if isinstance(e, LeasesSeen)]
    assert seen[-1].coordinator
    assert seen[-1].coordinator.peer == "a"


def test_of_two_claims_of_one_instant_the_later_one_stays() -> None:
    """Who takes over a role claims what it has left, and then that it coordinates; this is not said a second time."""
    pair = Pair()
    for term in range(2, 22):
        pair.do("b", PublishLease((1,), term, False), PublishLease((1,), term, True))
        pair.pass_time(6.0)
        seen = [e for e in pair["a"].of(LeasesSeen) if isinstance(e, LeasesSeen)]
        assert [rival.peer for rival in seen[-1].rivals] == ["b"], f"term {term}"


def test_messages_keep_their_order_within_a_lane() -> None:
    pair = Pair()
    pair.do("a", *numbered(200))
    pair.pass_time(5.0)
    assert heads(pair["b"]) == [str(i) for i in range(200)]


def test_reordered_and_duplicated_messages_all_arrive() -> None:
    pair = Pair(Faults().duplicate(0.2).reorder(0.2))
    pair.do("a", *numbered(200))
    pair.pass_time(5.0)
    got = heads(pair["b"])
    assert len(got) > 220
    assert set(got) == {str(i) for i in range(200)}
    assert got != sorted(got, key=int)
    pair.faults.assert_fired()


def test_what_was_asked_for_and_never_happened_is_an_error() -> None:
    with pytest.raises(AssertionError, match="duplicate"):
        Faults().duplicate(0.5).assert_fired()
    with pytest.raises(AssertionError, match=r"never fired.*crash of replica 0 of stage 2"):
        Faults().crash(stage=2, at_step=3, phase="forward").assert_fired()


def test_a_cut_link_passes_nothing_while_it_is_cut() -> None:
    pair = Pair(Faults().cut(("a", "b"), (1.0, 2.0)))
    pair.do("a", *numbered(1))
    pair.pass_time(1.0)
    pair.do("a", SendMessage("b", RecordsWanted("lost")))
    pair.pass_time(2.0)
    pair.do("a", SendMessage("b", RecordsWanted("later")))
    pair.pass_time(1.0)
    assert heads(pair["b"]) == ["0", "later"]
    pair.faults.assert_fired()


def test_a_node_without_an_address_is_not_reached() -> None:
    pair = Pair()
    pair.node("a").addresses.clear()
    pair.do("a", *numbered(1), Introduce("b", pair.node("b").address), SendMessage("b", RecordsWanted("known")))
    pair.pass_time(1.0)
    assert heads(pair["b"]) == ["known"]
    assert pair.world.num_unreachable == 1


def note(step: int) -> Note:
    return Note("reduced", {"stage": 0, "step": step})


def seat_a(pair: Pair, kind: str, **fields: object) -> None:
    """A strike that hits node a at its next `reduced` note, whoever is on the roster."""
    pair.world.rank = lambda node, stage: 0 if node.peer == "a" else -1  # type: ignore[method-assign]
    pair.faults.add(Strike(kind, 0, 1, "reduced", **fields))  # type: ignore[arg-type]


def test_a_crash_cuts_a_list_of_commands_in_two() -> None:
    pair = Pair()
    seat_a(pair, "crash")
    pair.do("a", SendMessage("b", RecordsWanted("before")), note(1), SendMessage("b", RecordsWanted("after")))
    pair.pass_time(1.0)
    assert pair.node("a").dead
    assert "after" not in heads(pair["b"])
    assert pair.faults.fired == {"crash": 1}


def test_a_frozen_node_goes_on_where_it_stood() -> None:
    pair = Pair()
    seat_a(pair, "freeze", for_s=2.0)
    pair.do("a", note(1), SendMessage("b", RecordsWanted("rest")))
    pair.do("b", SendMessage("a", RecordsWanted("meanwhile")))
    ticks = len(pair["a"].seen)
    pair.pass_time(1.9)
    assert heads(pair["b"]) == []
    assert len(pair["a"].seen) == ticks
    pair.pass_time(1.0)
    assert heads(pair["b"]) == ["rest"]
    assert heads(pair["a"]) == ["meanwhile"]


def test_a_restarted_node_is_another_incarnation_at_another_address() -> None:
    pair = Pair()
    before = pair.node("a")
    seat_a(pair, "restart", for_s=1.0)
    pair.do("a", note(1))
    pair.pass_time(2.0)
    after = pair.node("a")
    assert after.spec.member == Member("a", 2)
    assert after.address != before.address
    assert not after.spec.founder


def test_a_strike_lets_pass_what_it_should() -> None:
    faults = Faults().add(Strike("crash", 0, 3, "reduced", skip=1))
    hits = [faults.strike(note(step), lambda _: 0) is not None for step in (2, 3, 4, 5)]
    assert hits == [False, False, True, False]


def release_what_comes(event: Event) -> list[Command]:
    return [Release(event.handle)] if isinstance(event, PayloadArrived) else []


def test_a_payload_takes_the_time_that_its_bytes_take() -> None:
    network = Network(random.Random(1), Weather(), latency_s=(0.01, 0.01), rate_bytes_s=(1e6, 1e6))
    sent = network.payload("a", "b", 0.0, 1_000_000)
    (first,) = sent.arrivals
    assert sent.at == pytest.approx(1.0)
    assert first == pytest.approx(2.0, rel=0.1) or first == pytest.approx(1.0, rel=0.1)
    (second,) = network.payload("c", "b", 0.0, 1_000_000).arrivals
    assert second >= first + 1.0, "two senders share the receiver's downlink"


def test_payloads_are_owned_until_released() -> None:
    pair = Pair(on_b=release_what_comes)
    handle = pair.node("a").pool.give()
    pair.watch.payload(pair.node("a"), handle, (1, 1))
    pair.do("a", SendPayload("b", HEADER, handle), Release(handle))
    pair.pass_time(1.0)
    assert len(pair["b"].of(PayloadArrived)) == 1
    for node in pair.world.alive():
        pair.watch.quiet(node)


@pytest.mark.parametrize(("loud", "after_s"), [(True, 0.2), (False, 7.0)])
def test_sending_to_a_dead_node_fails_at_once_or_in_the_end(loud: bool, after_s: float) -> None:
    pair = Pair()
    pair.world._die(pair.node("b"), loud)
    handle = pair.node("a").pool.give()
    pair.watch.payload(pair.node("a"), handle, (1, 1))
    pair.do("a", SendPayload("b", HEADER, handle))
    pair.pass_time(after_s)
    (failed,) = pair["a"].of(CommandFailed)
    assert isinstance(failed, CommandFailed)
    assert (failed.peer, failed.step, failed.attempt, failed.microbatch) == ("b", 1, 1, 0)


def test_a_clock_that_gains_ticks_and_reads_so() -> None:
    pair = Pair()
    node = pair.node("b")
    node.pace = 2.0
    pair.do("a", *numbered(1))
    pair.pass_time(4.0)
    seen = [(at, event) for at, event in pair["b"].seen if isinstance(event, Tick)]
    assert 28 <= len(seen) <= 33
    assert seen[-1][0] - seen[1][0] == pytest.approx(8.0, abs=1.0)
    last = seen[-1][1]
    assert isinstance(last, Tick)
    assert last.heard["a"] == pytest.approx(8.0, abs=1.0)


def test_the_directory_may_not_answer() -> None:
    pair = Pair()
    pair.world.directory_down_until = 6.0
    pair.pass_time(5.5)
    assert not pair["b"].of(LeasesSeen)
    assert pair.world.num_lookups_failed
    pair.pass_time(4.0)
    assert pair["b"].of(LeasesSeen)


def test_a_short_cut_between_two_nodes_does_not_stop_a_swarm() -> None:
    """Real nodes; both directions of one link lose everything for less than a lapse, then a node is frozen."""
    seed = next(s for s in range(100) if run_seed(s).verdict == "went on")
    trial = Trial(make_scenario(seed))
    one, other = (spec.member.peer for _, spec in trial.scenario.nodes[:2])
    trial.faults.cut((one, other), (20.0, 21.5))
    assert trial.run().verdict == "went on"


def test_speed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Told, not judged: a slow machine must not fail."""
    began = time.process_time()
    events = sum(run_seed(seed).events for seed in range(4))
    with capsys.disabled():
        print(f" {events / (time.process_time() - began):.0f} events per CPU second", end="")
    assert events > 10_000

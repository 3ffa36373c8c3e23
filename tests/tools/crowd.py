"""People who walk in and out of a live swarm: who is there, who may go, what everybody tells meanwhile, and what it came to."""

from __future__ import annotations

import os
import signal
import socket
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from node import http_client
from node.demo.process import NodeProcess
from tests.integration.ends import Ending
from tests.tools.command import regrow
from tests.tools.relay import Faults, Relay, relay
from tests.tools.swarm import Swarm, wait_for

LOOK_S = 0.25
IN_LIMIT_S = 120.0
"""For everybody who was started to compute, and for everybody who is gone to be off the roster."""
STEPS_LIMIT_S = 90.0
Status = dict[str, Any]
Told = dict[str, Status]
"""/status by the node's name."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Crowd:
    """See the module. Whoever looks at /status here also checks that equal state_ids have equal digests, then and before."""

    def __init__(self, made: Swarm) -> None:
        self.made = made
        self.counts: Counter[str] = Counter()
        self.asleep: set[str] = set()
        self.started: dict[str, list[float]] = {}
        """Wall times at which a peer's processes were started after the run had begun."""
        self.links: dict[str, Relay] = {}
        """By name, in front of the gRPC ports of those that are far away."""
        self.longest_leave_s = 0.0
        self._digests: dict[str, tuple[str, str]] = {}

    # ---- who is there

    def living(self) -> list[NodeProcess]:
        """Processes that run and are neither stopped nor cut off."""
        return [node for node in self.made.nodes if node.exit_code is None and node.name not in self.asleep]

    def look(self) -> Told:
        """What everybody tells who is up."""
        told = {}
        for node in self.living():
            status = self.made.status(node) if node.check_ready() else {}
            if status:
                told[node.name] = status
                self._compare(node.name, status)
        return told

    def _compare(self, name: str, status: Status) -> None:
        for seat in status["seats"]:
            if seat["digest"] and seat["state_id"]:
                other, digest = self._digests.setdefault(seat["state_id"], (name, seat["digest"]))
                assert seat["digest"] == digest, f"{name} and {other} differ at stage {seat['stage']}: {status}"

    @property
    def num_compared(self) -> int:
        """States of which a digest was seen in some /status."""
        return len(self._digests)

    def whole(self) -> Told:
        """What everybody tells, once all who live compute, nobody else is on the roster, and they follow one coordinator."""
        told: Told = wait_for("everybody computes", self._when_whole, IN_LIMIT_S, self.situation, LOOK_S)
        return told

    def _when_whole(self) -> Told | None:
        told = self.look()
        peers = {status["peer"] for status in told.values()}
        one = len(told) == len(self.living()) and len({tuple(status["ballot"]) for status in told.values()}) == 1
        return told if one and all(_is_whole(status, peers) for status in told.values()) else None

    def coordinator(self, told: Told) -> NodeProcess:
        """Whom everybody follows."""
        leaders = {status["ballot"][1] for status in told.values()}
        assert len(leaders) == 1, leaders
        return self.node_of(leaders.pop())

    def node_of(self, peer: str) -> NodeProcess:
        """The living node of a peer."""
        return next(node for node in self.living() if self.made.running(node).peer == peer)

    def can_spare(self, node: NodeProcess, told: Told) -> bool:
        """Does somebody else hold each of its stages?"""
        roster = [row for row in told[node.name]["roster"] if row["role"] != "learner"]
        mine = self.made.running(node).peer
        others = {row["stage"] for row in roster if row["peer"] != mine}
        return all(row["stage"] in others for row in roster if row["peer"] == mine)

    def spare(self, told: Told) -> list[NodeProcess]:
        """Who may go, by name; the coordinator left out."""
        lead = self.coordinator(told)
        found = [node for node in self.living() if node is not lead and node.name in told and self.can_spare(node, told)]
        return sorted(found, key=lambda node: node.name)

    # ---- in and out

    def far(self, stack: ExitStack, name: str, faults: Faults) -> tuple[str, ...]:
        """Options with which the node of this name is reached through a relay only, until `stack` ends."""
        port = free_port()
        link = self.links[name] = stack.enter_context(relay(f"127.0.0.1:{port}"))
        link.set(faults)
        return "--listen", f"127.0.0.1:{port}", "--announce", link.address

    def come(self, name: str, *args: str, staying: Sequence[NodeProcess] = ()) -> NodeProcess:
        """Somebody joins, or comes back: then the name is one that was here before. Does not wait. The invite is from the first
        one of `staying`, or of those that live."""
        back = any(node.name == name for node in self.made.nodes)
        self.counts["back" if back else "joins"] += 1
        began = time.time()
        node = self.made.join(self.invite(staying or self.living()), *args, name=name)
        self.started.setdefault(name, []).append(began)
        return node

    def invite(self, staying: Sequence[NodeProcess]) -> str:
        """A fresh one, from one that will be there for a while: whom an older one tells of may be gone."""
        up = next(node for node in staying if node.running)
        return http_client.get(self.made.running(up).http, "/invite").decode().strip()

    def leave(self, node: NodeProcess) -> None:
        """Ctrl-C: it is gone in time, exit code 0, with all that it had started."""
        self.counts["leaves"] += 1
        ending = Ending(node)
        ending.send(signal.SIGINT)
        assert ending.check({0}) == 0
        self.longest_leave_s = max(self.longest_leave_s, ending.seconds)

    def kill(self, node: NodeProcess, count: str = "kills") -> None:
        """kill -9."""
        self.counts[count] += 1
        ending = Ending(node)
        ending.send(signal.SIGKILL)
        assert ending.check() == 137

    def sleep(self, node: NodeProcess) -> None:
        """SIGSTOP: it is asleep until `wake`."""
        os.kill(node.process.pid, signal.SIGSTOP)
        self.asleep.add(node.name)

    def wake(self, node: NodeProcess) -> None:
        """SIGCONT."""
        os.kill(node.process.pid, signal.SIGCONT)
        self.asleep.discard(node.name)

    def cut_off(self, node: NodeProcess) -> None:
        """A black hole: nothing of what nodes say reaches it or leaves it, until `heal`. All who live must be `far`."""
        for name, link in self.links.items():
            link.set(Faults("blackhole", client_pid=0 if name == node.name else node.process.pid))
        self.asleep.add(node.name)

    def heal(self, node: NodeProcess) -> None:
        """What was held up in the black hole goes on."""
        for link in self.links.values():
            link.set(Faults())
        self.asleep.discard(node.name)

    # ---- how far

    def step(self) -> int:
        """The newest committed one that anybody tells."""
        return max((status["step"] for status in self.look().values()), default=0)

    def wait_step(self, step: int) -> None:
        """Until it is committed."""
        wait_for(f"step {step}", lambda: self.step() >= step, STEPS_LIMIT_S, self.situation, LOOK_S)

    def go_on(self, steps: int) -> None:
        """Until so many more are committed."""
        self.wait_step(self.step() + steps)

    def pause(self) -> Told:
        """/status of everybody once the organiser's order to pause is carried out; his node need not live."""
        self.whole()
        some = self.made.running(self.living()[-1]).http
        ended = regrow("pause", some, "--key", self.made.nodes[0].state_dir / "organiser.key")
        assert ended.code == 0, ended.err
        told: Told = wait_for("paused", self._when_at_rest, STEPS_LIMIT_S, self.situation, LOOK_S)
        return told

    def _when_at_rest(self) -> Told | None:
        told = self.look()
        where = {(status["phase"], status["step"]) for status in told.values()}
        steps = {seat["step"] for status in told.values() for seat in status["seats"]}
        paused = len(where) == 1 and len(told) == len(self.living()) and next(iter(where))[0] == "paused"
        return told if paused and steps == {step for _, step in where} else None

    def situation(self) -> str:
        """For the message of a failed wait."""
        lines = [f"{name}: step {s['step']}, {s['sentence']}, {s['ballot']}" for name, s in self.look().items()]
        roster = max(self.look().values(), key=lambda s: s["step"], default={"roster": []})["roster"]
        return "\n".join([*lines, *map(str, roster), self.made.situation()])

    # ---- what it came to

    def logs(self) -> dict[str, list[dict[str, Any]]]:
        """Everybody's events by peer, those of the dead included."""
        return {self.made.running(node).peer: self.made.events(node) for node in self.made.nodes if node.running}

    def losses(self) -> dict[int, float]:
        """The loss of each committed step, on which all logs agree."""
        found: dict[int, float] = {}
        for events in self.logs().values():
            for event in events:
                if event["type"] == "loss":
                    assert found.setdefault(event["step"], event["value"]) == event["value"], event
        return found

    def committed_at(self) -> dict[int, float]:
        """Wall time at which somebody first knew that the step was committed."""
        found: dict[int, float] = {}
        for events in self.logs().values():
            for event in events:
                if event["type"] == "loss":
                    found[event["step"]] = min(event["wall"], found.get(event["step"], event["wall"]))
        return found

    def until_active_s(self) -> list[float]:
        """Seconds from the start of a newcomer's process until it computes, for each that came to that."""
        logs, found = self.logs(), []
        for name, starts in self.started.items():
            peer = next(self.made.running(n).peer for n in self.made.nodes if n.name == name and n.running)
            active = sorted(
                e["wall"] for e in logs[peer] if e["type"] == "joined" and (e["peer"], e["role"]) == (peer, "active")
            )
            for began, end in zip(starts, [*starts[1:], time.time()], strict=True):
                found += [wall - began for wall in active if began < wall < end][:1]
        return found

    def figures(self, calm: int) -> dict[str, Any]:
        """What one may want to know. `calm`: the first and the last so many steps were undisturbed."""
        at = self.committed_at()
        gaps = [at[step + 1] - at[step] for step in sorted(at) if step + 1 in at]
        waits = self.until_active_s()
        return dict(self.counts) | {
            "steps": max(at),
            "takeovers": sum(event["type"] == "took_over" for events in self.logs().values() for event in events),
            "longest_pause_s": round(max(gaps), 2),
            "step_s_before": round(statistics.mean(gaps[1:calm]), 3),
            "step_s_after": round(statistics.mean(gaps[-calm:]), 3),
            "until_active_s": [round(each, 1) for each in waits],
            "longest_leave_s": round(self.longest_leave_s, 2),
            "states_compared": self.num_compared,
        }


def _is_whole(status: Status, peers: set[str]) -> bool:
    """On this node's roster are exactly these peers; each computes somewhere and nobody is learning."""
    roster = status["roster"]
    active = {row["peer"] for row in roster if row["role"] == "active"}
    return active == peers == {row["peer"] for row in roster} and not any(row["role"] == "learner" for row in roster)

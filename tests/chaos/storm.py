"""The hours of trouble: what is due strikes, what has lasted is relieved, who went comes back, and everybody is watched.

One thread; each turn is short. What must not be is noted as a violation, and the storm goes on; only a swarm that makes no step
for `STALL_S` ends it.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from node.demo.process import STDERR_FILE, NodeProcess
from tests.chaos.gauges import Gauges
from tests.chaos.hands import Hands, Relieve
from tests.chaos.rig import NUM_NODES, Rig, Status
from tests.chaos.schedule import DEPARTURES, ON_LINKS, SILENCES, Fault
from tests.integration.ends import gone
from tests.tools.swarm import START_LIMIT_S

TURN_S, LOOK_S, READ_S = 0.1, 1.0, 5.0
PATIENCE_S = 25.0
"""A fault that strikes nobody for so long, because too much is out of order already, is withheld."""
MOST_ABSENT = 2
"""So many of the nodes may be silent, gone or not caught up at once: more could take the last copy of stage 0, or a quorum."""
LEAVE_LIMIT_S = 40.0
ORPHAN_S = 10.0
"""Longer than what a node has started may outlive it, on a machine that is busy."""
STALL_S = 120.0
SETTLE_S = 120.0
LAST_STEPS = 3


@dataclass
class Ongoing:
    """A fault that is on, or whose victim is away."""

    fault: Fault
    node: NodeProcess
    began: float
    relieve: Relieve
    newcomer: NodeProcess | None = None


@dataclass
class Storm:
    """See the module. `say` gets a line for people at whatever happens."""

    rig: Rig
    say: Callable[[str], None]
    gauges: Gauges = field(default_factory=Gauges)
    fired: Counter[str] = field(default_factory=Counter)
    withheld: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    unequal: list[str] = field(default_factory=list)
    """Two nodes told different digests of one state."""
    ongoing: list[Ongoing] = field(default_factory=list)
    told: dict[str, Status] = field(default_factory=dict)
    """The last /status of each that answers."""
    step: int = 0
    longest_pause_s: float = 0.0

    def __post_init__(self) -> None:
        self.hands = Hands(self.rig)
        self._began = self._stepped = time.monotonic()
        self._looked = self._read = 0.0
        self._accounted: set[int] = set()
        self._stalled = False

    # ---- the whole of it

    def calm(self, seconds: float) -> float:
        """Steps per second while nothing happens, once everybody is in."""
        if not self._until(self._whole, START_LIMIT_S + SETTLE_S, "not everybody is in at the start"):
            return 0.0
        since, step = time.monotonic(), self.step
        self._until(lambda: time.monotonic() >= since + seconds, seconds + STALL_S, "")
        return (self.step - step) / (time.monotonic() - since)

    def rage(self, plan: tuple[Fault, ...], seconds: float) -> float:
        """The schedule; steps per second."""
        self._began, step = time.monotonic(), self.step
        due = list(plan)
        while (now := self._now()) < seconds and not self._stalled:
            for fault in [each for each in due if each.at_s <= now]:
                if self._strike(fault):
                    due.remove(fault)
                elif now > fault.at_s + PATIENCE_S:
                    due.remove(fault)
                    self._withhold(fault)
            self._turn()
        for fault in due:
            self._withhold(fault)
        return (self.step - step) / self._now()

    def settle(self) -> None:
        """All faults end; everybody is in again, some more steps are made, all leave."""
        if not self._stalled:
            self._until(lambda: not self.ongoing, PATIENCE_S + START_LIMIT_S, "faults do not end")
        for each in list(self.ongoing):
            each.relieve()
            self.ongoing.remove(each)
        if self._until(self._whole, SETTLE_S, "not everybody is in again after the last fault"):
            step = self.step
            self._until(lambda: self.step >= step + LAST_STEPS, SETTLE_S, "no step after the last fault")
        self._end_all()

    def _end_all(self) -> None:
        living = self.rig.living()
        for node in living:
            node.send(signal.SIGTERM)
        deadline = time.monotonic() + LEAVE_LIMIT_S
        while any(node.exit_code is None for node in living) and time.monotonic() < deadline:
            time.sleep(TURN_S)
        for node in living:
            self._account(node, {0})
        ended = time.monotonic()
        while (left := self.rig.left_behind()) and time.monotonic() < ended + ORPHAN_S:
            time.sleep(TURN_S)
        self.orphans += [f"{process.pid} {process.name()}" for process in left]

    # ---- a turn

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _until(self, condition: Callable[[], bool], limit_s: float, what: str) -> bool:
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline or self._stalled:
                self._violate(what or "no step")
                return False
            self._turn()
        return True

    def _turn(self) -> None:
        time.sleep(TURN_S)
        self._look()
        self._find_orphans()
        for each in list(self.ongoing):
            self._follow(each)
        asked = {id(each.node) for each in self.ongoing if each.fault.kind in DEPARTURES}
        for node in self.rig.nodes:
            if id(node) not in asked and node.exit_code is not None:
                self._account(node, set())

    def _look(self) -> None:
        now = time.monotonic()
        if now >= self._looked + LOOK_S:
            self._looked = now
            asleep = {each.node.name for each in self.ongoing if each.fault.kind == "stop"}
            told = {node.name: self.rig.told(node) for node in self.rig.living() if node.name not in asleep}
            self.told = {name: status for name, status in told.items() if status}
            self._compare()
            self._note_progress(max((status["step"] for status in self.told.values()), default=0))
        if now >= self._read + READ_S:
            self._read = now
            self.gauges.read(self.rig.living())

    def _note_progress(self, step: int) -> None:
        now = time.monotonic()
        pause = now - self._stepped
        if step > self.step:
            self.step, self._stepped = step, now
            self.longest_pause_s = max(self.longest_pause_s, pause)
        elif pause > STALL_S and not self._stalled:
            self._stalled = True
            self._violate(f"no step after {self.step} for {STALL_S:.0f} s: {[s['sentence'] for s in self.told.values()]}")

    def _compare(self) -> None:
        for name, status in self.told.items():
            for seat in status["seats"]:
                if seat["digest"] and seat["state_id"]:
                    known = self.digests.setdefault(seat["state_id"], seat["digest"])
                    if known != seat["digest"]:
                        self.unequal.append(f"{name} tells {seat['digest']} of stage {seat['stage']}; another {known}")

    # ---- who may be struck

    def _best(self) -> Status:
        return max(
            self.told.values(), key=lambda status: (status["step"], status["ballot"]), default={"roster": [], "ballot": [0, ""]}
        )

    def _on_duty(self) -> dict[str, NodeProcess]:
        """Nodes by peer that hold a seat with state and are not silenced."""
        silenced = {each.node.name for each in self.ongoing if each.fault.kind in SILENCES}
        seated = {row["peer"] for row in self._best()["roster"] if row["role"] != "learner"}
        nodes = [node for node in self.rig.living() if node.name in self.told and node.name not in silenced]
        return {node.running.peer: node for node in nodes if node.running and node.running.peer in seated}

    def _whole(self) -> bool:
        living = self.rig.living()
        ballots = {tuple(status["ballot"]) for status in self.told.values()}
        return len(self._on_duty()) == len(living) == NUM_NODES and len(ballots) == 1 and self.step > 0

    def _candidates(self, fault: Fault) -> list[NodeProcess]:
        """By name: who may be struck, those that the fault means if there are any."""
        duty, roster = self._on_duty(), self._best()["roster"]
        struck = {each.node.name for each in self.ongoing}
        held = [(row["stage"], row["peer"]) for row in roster if row["role"] != "learner"]
        free = {peer: node for peer, node in duty.items() if node.name not in struck}
        if fault.kind in SILENCES:
            if len(duty) <= NUM_NODES - MOST_ABSENT:
                return []
            with_0 = {peer for stage, peer in held if stage == 0 and peer in duty}
            free = {peer: node for peer, node in free.items() if with_0 - {peer}}
        count = Counter(stage for stage, peer in held if peer in duty)
        meant = {
            "any": set(free),
            "coordinator": {self._best()["ballot"][1]},
            "sole holder": {peer for stage, peer in held if count[stage] == 1},
            "stage 0": {row["peer"] for row in roster if (row["stage"], row["role"]) == (0, "active")},
        }[fault.target]
        return sorted([free[peer] for peer in (meant & set(free)) or set(free)], key=lambda node: node.name)

    def _strike(self, fault: Fault) -> bool:
        if fault.kind in ON_LINKS and any(each.fault.kind in ON_LINKS for each in self.ongoing):
            return False
        found = self._candidates(fault)
        if not found:
            return False
        node = found[int(fault.whom * len(found))]
        others = [each for each in self.rig.living() if each is not node and self.hands.is_connected(each, node)]
        if not others and fault.kind == "pair":
            return False
        other = others[int(fault.other * len(others))] if others else node
        self.ongoing.append(Ongoing(fault, node, time.monotonic(), self.hands.strike(fault, node, other)))
        self.say(f"{self._now():6.1f} s  step {self.step:5}  {fault.kind} strikes {node.name} ({fault.target})")
        return True

    def _withhold(self, fault: Fault) -> None:
        self.withheld[fault.kind] += 1
        self.say(f"{self._now():6.1f} s  step {self.step:5}  {fault.kind} withheld")

    # ---- until it is over

    def _follow(self, each: Ongoing) -> None:
        """A fault ends when its time has come; who went comes back, and then it is over."""
        if each.newcomer is not None:
            self._await(each, each.newcomer)
            return
        if time.monotonic() < each.began + each.fault.for_s:
            return
        if each.fault.kind not in DEPARTURES:
            self.fired[each.fault.kind] += each.relieve()
            self.ongoing.remove(each)
            self.say(f"{self._now():6.1f} s  step {self.step:5}  {each.fault.kind} at {each.node.name} ends")
        elif self._is_gone(each):
            self._come_back(each)

    def _await(self, each: Ongoing, newcomer: NodeProcess) -> None:
        if newcomer.check_ready():
            self.fired[each.fault.back] += 1
            self.ongoing.remove(each)
        elif newcomer.exit_code is not None:  # a violation already; another one is needed all the same
            each.newcomer = None

    def _is_gone(self, each: Ongoing) -> bool:
        if each.node.exit_code is not None:
            return True
        if time.monotonic() > each.began + LEAVE_LIMIT_S:
            self._violate(f"{each.node.name} does not end within {LEAVE_LIMIT_S:.0f} s of {each.fault.kind}")
            each.node.send(signal.SIGKILL)
        return False

    def _come_back(self, each: Ongoing) -> None:
        invite = next(filter(None, map(self.rig.invite, self._on_duty().values())), "")
        if not invite:
            return
        kind = each.fault.kind
        if id(each.node) not in self._accounted:
            self.fired[kind] += each.relieve()
            self._account(each.node, {137} if kind == "kill" else {0, 143})
        name = each.node.name if each.fault.back == "same_identity" else f"n{len(self.rig.links)}"
        each.newcomer = self.rig.join(invite, name=name)
        self.say(
            f"{self._now():6.1f} s  step {self.step:5}  {name} comes in place of {each.node.name}, which is gone by {kind}"
        )

    def _account(self, node: NodeProcess, allowed: set[int]) -> None:
        """Once for each process: did it end as it should have?"""
        if id(node) in self._accounted:
            return
        self._accounted.add(id(node))
        words = (node.state_dir / STDERR_FILE).read_text(errors="replace")
        if node.exit_code not in allowed:
            told = "does not end" if node.exit_code is None else f"ended with {node.exit_code}"
            self._violate(f"{node.name} {told}: {' | '.join(words.splitlines()[-4:])}")
        for sign in ("Traceback", "Exception ignored"):
            if sign in words:
                self._violate(f"{node.name} wrote: {words[words.index(sign) :][-2000:]}")

    def _find_orphans(self) -> None:
        for at, name, child in list(self.hands.bereaved):
            if gone(child):
                self.hands.bereaved.remove((at, name, child))
            elif time.monotonic() > at + ORPHAN_S:
                self.hands.bereaved.remove((at, name, child))
                self.orphans.append(f"{child.pid} of {name}")

    def _violate(self, sentence: str) -> None:
        self.violations.append(sentence)
        self.say(f"{self._now():6.1f} s  step {self.step:5}  VIOLATION: {sentence}")

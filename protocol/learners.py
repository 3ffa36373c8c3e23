"""The coordinator's view of those that copy the state of a living stage, and how long a step may wait for them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from protocol.chain import Chain
from protocol.ids import Member, StateId
from protocol.messages import Learning

PATIENCE = 0.1
"""A newcomer may hold up the run for this part of the time that it has been copying, once, and then not for ten times as long:
so newcomers of any speed get in, and joining costs the run at most a tenth of its time."""
LEAST_HEARTBEATS = 2.0
MAX_NAMED = 4
"""Stages that a sentence names. It stays the same while one after another gets there: each change goes to everybody."""
UNKNOWN_S = 1e8
"""Seconds left that mean that nothing comes at present."""


@dataclass(slots=True)
class Learner:
    """What one has said of itself."""

    since: float
    state_id: StateId = ""
    digest: str = ""
    seconds_left: float = math.inf
    not_before: float = -math.inf
    """It has held up the run, and may not again before."""


def coarse(seconds: float) -> str:
    """A time for people, of which there are few different ones: each change of a sentence goes to everybody."""
    unit, size = ("s", 1) if seconds < 60 else ("min", 60) if seconds < 3600 else ("h", 3600)
    number = math.ceil(seconds / size)
    return f"{number if number < 5 else -(-number // 5) * 5} {unit}"


class Learners:
    """Keyed by (stage, member). `most_s`: the longest that a step waits."""

    def __init__(self, chain: Chain, heartbeat_s: float, most_s: float) -> None:
        self._chain, self._least_s, self._most_s = chain, LEAST_HEARTBEATS * heartbeat_s, most_s
        self._known: dict[tuple[int, Member], Learner] = {}
        self._held: tuple[float, float, frozenset[tuple[int, Member]]] | None = None
        """Since when, until when at most, and for whom the next step waits."""

    def look(self, now: float) -> None:
        """Who learns according to the roster; others are forgotten."""
        seated = [(s.stage, s.member) for s in self._chain.in_role("learner")]
        self._known = {key: self._known.get(key) or Learner(now) for key in seated}

    def enter(self, member: Member, message: Learning) -> None:
        """A learner reports."""
        learner = self._known.get((message.stage, member))
        if learner:
            learner.seconds_left = max(0.0, message.seconds_left)
            learner.state_id, learner.digest = message.state_id, message.digest

    def caught_up(self) -> list[tuple[int, Member, str]]:
        """(stage, member, digest) of those that hold the newest state of their stage."""
        states = self._chain.state_ids
        return [(stage, m, x.digest) for (stage, m), x in self._known.items() if x.digest and x.state_id == states[stage]]

    def at_rest(self, stage: int) -> list[tuple[Member, StateId]]:
        """Who has a whole state of the stage that is not the newest, and has not begun to copy over it."""
        return [(m, x.state_id) for (s, m), x in self._known.items() if s == stage and x.digest and x.seconds_left >= UNKNOWN_S]

    def seconds_left(self, stage: int, member: Member, now: float, after_s: float) -> float:
        """Until a learner has the newest state, by what it says; 0 before it has been at it for `after_s`."""
        learner = self._known.get((stage, member))
        known = learner and learner.seconds_left < UNKNOWN_S and now - learner.since >= max(after_s, self._least_s)
        return learner.seconds_left if learner and known else 0.0

    def progress(self, stage: int, member: Member) -> str:
        """For people, after what is said of it; '' where nothing is known."""
        learner = self._known.get((stage, member))
        left = learner.seconds_left if learner else math.inf
        return f" ({coarse(left)} left)" if left < UNKNOWN_S else ""

    def hold(self, now: float) -> str:
        """Why the next step waits now; '' if it does not."""
        if self._held is None:
            near = [
                (key, x) for key, x in self._known.items() if now >= x.not_before and x.seconds_left <= self._patience(x, now)
            ]
            if not near:
                return ""
            until = now + max(self._patience(x, now) for _, x in near) + self._least_s
            self._held = now, until, frozenset(key for key, _ in near)
        waited_for = self._held[2] & self._known.keys()
        if waited_for and now < self._held[1]:
            stages = sorted({stage for stage, _ in self._held[2]})
            where = f"stage {', '.join(map(str, stages))}" if len(stages) <= MAX_NAMED else f"{len(stages)} stages"
            return f"waiting a moment for a newcomer at {where} to have the newest state"
        self._spend(now)
        return ""

    def _patience(self, learner: Learner, now: float) -> float:
        return min(self._most_s, max(self._least_s, PATIENCE * (now - learner.since)))

    def _spend(self, now: float) -> None:
        assert self._held, "only what was held is spent"
        spent, self._held = now - self._held[0], None
        for learner in self._known.values():
            learner.not_before = now + spent / PATIENCE

    def go_on(self, now: float) -> None:
        """The next step opens: who was waited for is in, or has to wait."""
        if self._held:
            self._spend(now)

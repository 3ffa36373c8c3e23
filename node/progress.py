"""How far a run is, from its notes: step, loss, speed, time left, and this node's share of the work."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protocol.ids import members_of
from protocol.sizes import human_bytes

WINDOW_STEPS = 20
MEAN_STEPS = 5


class Progress:
    """Fed with notes in any order; a step counts once. `last_step` is the run's end, 0 if not known."""

    def __init__(self, last_step: int = 0, peer: str = "") -> None:
        self.last_step, self.peer = last_step, peer
        self.step = 0
        self.loss: float | None = None
        self.validation_loss: float | None = None
        self.num_tokens = 0
        self.num_recoveries = 0
        self.num_voids = 0
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=MEAN_STEPS)
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=WINDOW_STEPS + 1)
        self._counted: dict[int, int] = {}
        self._shares: dict[int, tuple[int, int]] = {}

    def note(self, type_: str, fields: Mapping[str, Any], now: float) -> None:
        """One note made at `now` (s, monotonic, one clock for all notes)."""
        match type_:
            case "loss" if int(fields["step"]) > self.step:
                self._on_loss(int(fields["step"]), float(fields["value"]), int(fields["tokens"]), now)
            case "validation":
                self.validation_loss = float(fields["value"])
            case "committed":
                self._on_committed(fields)
            case "rebuild" | "promoted":
                self.num_recoveries += 1
            case "voided":
                self.num_voids += 1

    def _on_loss(self, step: int, value: float, tokens: int, now: float) -> None:
        self.step, self.loss = step, value
        self.num_tokens += tokens
        if len(self._first) < MEAN_STEPS:
            self._first.append(value)
        self._last.append(value)
        self._recent.append((now, step, tokens))

    def _on_committed(self, fields: Mapping[str, Any]) -> None:
        stage, step = int(fields["stage"]), int(fields["step"])
        if step <= self._counted.get(stage, 0):
            return
        self._counted[stage] = step
        contributors: Mapping[str, str] = fields.get("contributors", {})
        own, everybody = self._shares.get(stage, (0, 0))
        own += len(members_of(contributors.get(self.peer, "0")))
        everybody += sum(len(members_of(bits)) for bits in contributors.values())
        self._shares[stage] = own, everybody

    @property
    def tokens_per_s(self) -> float | None:
        """Over the last `WINDOW_STEPS` steps; None before there are two."""
        if len(self._recent) < 2:
            return None
        seconds = self._recent[-1][0] - self._recent[0][0]
        tokens = sum(entry[2] for entry in list(self._recent)[1:])
        return tokens / seconds if seconds > 0 else None

    @property
    def eta_s(self) -> float | None:
        """Seconds until `last_step` at the present speed."""
        if len(self._recent) < 2 or not self.last_step:
            return None
        (before, first, _), (now, last, _) = self._recent[0], self._recent[-1]
        return (self.last_step - last) * (now - before) / (last - first)

    @property
    def share(self) -> float | None:
        """Part of the work on the stages for which this node computed that was its own, 0..1."""
        computed = [share for share in self._shares.values() if share[0]]
        everybody = sum(share[1] for share in computed)
        return sum(share[0] for share in computed) / everybody if everybody else None

    @property
    def first_loss(self) -> float | None:
        """Mean loss of the first `MEAN_STEPS` steps that were seen."""
        return sum(self._first) / len(self._first) if self._first else None

    @property
    def last_loss(self) -> float | None:
        """Mean loss of the last `MEAN_STEPS` steps."""
        return sum(self._last) / len(self._last) if self._last else None

    def sentence(self) -> str:
        """One line for people."""
        of = f"/{self.last_step}" if self.last_step else ""
        parts = [f"step {self.step}{of}"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.3f}")
        if self.validation_loss is not None:
            parts.append(f"validation {self.validation_loss:.3f}")
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:,.0f} tokens/s")
        if self.eta_s is not None and self.step < self.last_step:
            parts.append(f"{duration(self.eta_s)} left")
        return "  ".join(parts)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Something on its way to this node."""

    what: str
    num_bytes: int
    total_bytes: int
    began: float
    seconds_left: float | None
    """None = by the mean rate so far."""

    def bar(self, width: int) -> str:
        """`███░░░░░`: how much of it is here."""
        done = round(width * self.num_bytes / self.total_bytes) if self.total_bytes else 0
        return "█" * min(done, width) + "░" * max(0, width - done)

    def sentence(self, now: float) -> str:
        """`copying stage 3: 120 MB of 805 MB, about 1m10s left`."""
        left, passed = self.seconds_left, now - self.began
        if left is None and self.num_bytes and passed > 0:
            left = passed * (self.total_bytes - self.num_bytes) / self.num_bytes
        known = left is not None and left < 1e6
        return f"{self.what}: {human_bytes(self.num_bytes)} of {human_bytes(self.total_bytes)}, " + (
            f"about {duration(left or 0.0)} left" if known else f"for {duration(passed)}"
        )


def duration(seconds: float) -> str:
    """`75` as `1m15s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"

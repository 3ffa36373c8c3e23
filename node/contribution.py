"""What this node did for a run, from the commits that count it, and what it did over all its starts."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from node.ports import StateStore, UnusableError
from node.progress import duration
from protocol.ids import members_of
from protocol.manifest import Manifest
from protocol.sizes import model_parameters, stage_parameters

TOTALS_FILE = "totals.json"
log = logging.getLogger(__name__)


class Contribution:
    """Fed with the fields of `committed` notes. Only microbatches of committed steps count."""

    def __init__(self, manifest: Manifest, peer: str) -> None:
        self.steps = 0
        """Steps in which this node computed something."""
        self.tokens = 0
        """Of microbatches that it computed at one stage at least."""
        self.first_step = 0
        self._peer, self._batch = peer, manifest.batch
        self._sizes = [stage_parameters(manifest, stage) for stage in range(manifest.num_stages)]
        self._step_work = model_parameters(manifest) * manifest.batch.num_microbatches
        self._own_work = self._all_work = 0
        self._stage_tokens: dict[int, int] = {}
        self._step = 0
        self._counted: set[int] = set()
        self._seen: dict[int, int] = {}

    @property
    def share(self) -> float | None:
        """Part of the swarm's work since this node has a seat that was its own, 0..1; a microbatch at a stage counts with the
        stage's parameters. None before the first commit."""
        return self._own_work / self._all_work if self._all_work else None

    def as_json(self) -> dict[str, Any]:
        """For `/status`; `share` is null before the first commit. `stages`: at each, the tokens of the microbatches that this
        node computed there; over all nodes of a stage they are the tokens of the run's committed steps."""
        stages = [{"stage": stage, "tokens": tokens} for stage, tokens in sorted(self._stage_tokens.items())]
        told = {"steps": self.steps, "tokens": self.tokens, "first_step": self.first_step or None, "share": self.share}
        return told | {"stages": stages}

    def committed(self, fields: Mapping[str, Any]) -> bool:
        """One `committed` note. Whether it is the first one that this node had a part in."""
        stage, step = int(fields["stage"]), int(fields["step"])
        if step <= self._seen.get(stage, 0):
            return False
        self._seen[stage] = step
        if step > self._step:
            self._step, self._counted = step, set()
            self._all_work += self._step_work
        own = set(members_of(fields.get("contributors", {}).get(self._peer, "0")))
        self._own_work += len(own) * self._sizes[stage]
        if own:
            self._stage_tokens[stage] = self._stage_tokens.get(stage, 0) + len(own) * self._batch.tokens_per_microbatch
        self.tokens += len(own - self._counted) * self._batch.tokens_per_microbatch
        self.steps += bool(own) and not self._counted
        self._counted |= own
        is_first = bool(own) and not self.first_step
        self.first_step = self.first_step or (step if own else 0)
        return is_first


@dataclass(frozen=True, slots=True)
class Totals:
    """Kept in the state directory over restarts, all runs together."""

    starts: int = 0
    steps: int = 0
    tokens: int = 0
    uptime_s: float = 0.0

    @classmethod
    def load(cls, store: StateStore) -> Totals:
        """What was kept; an unreadable file counts as none, for nothing depends on it."""
        try:
            told = json.loads(store.read(TOTALS_FILE) or b"{}")
            numbers = {name: told.get(name, 0) for name in ("starts", "steps", "tokens", "uptime_s")}
        except (ValueError, AttributeError):
            return cls()
        is_sound = all(isinstance(x, int | float) and 0 <= x < 1e18 for x in numbers.values())
        return cls(**numbers) if is_sound else cls()

    def save(self, store: StateStore) -> None:
        """Raises `UnusableError` where the directory cannot be written."""
        store.write(TOTALS_FILE, json.dumps(asdict(self)).encode())

    def plus(self, done: Contribution, uptime_s: float) -> Totals:
        """With one more start, which has lasted so long and done so much."""
        return Totals(self.starts + 1, self.steps + done.steps, self.tokens + done.tokens, self.uptime_s + uptime_s)

    def sentence(self) -> str:
        """For people."""
        times = "1 start" if self.starts == 1 else f"{self.starts} starts"
        steps = "1 step" if self.steps == 1 else f"{self.steps:,} steps"
        return f"{steps} and {self.tokens:,} tokens in {times}, up {duration(self.uptime_s)}"


class Keeper:
    """Totals of earlier starts, and the same with this one, kept in the state directory."""

    def __init__(self, store: StateStore) -> None:
        self.before = Totals.load(store)
        self._store = store

    @property
    def welcome(self) -> str:
        """For a node that was here before, else ''."""
        return f"welcome back: {self.before.sentence()} so far" if self.before.starts else ""

    def keep(self, done: Contribution | None, uptime_s: float) -> str:
        """Save; returns the sentence on all starts, '' for the first one. A start that never came to a run (None) does not
        count; a disk that is full costs only the totals."""
        if done is None:
            return ""
        kept = self.before.plus(done, uptime_s)
        try:
            kept.save(self._store)
        except UnusableError as error:
            log.warning("the totals are not kept: %s", error)
        return kept.sentence() if self.before.starts else ""

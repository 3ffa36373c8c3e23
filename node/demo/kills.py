"""The demo's kills: the only holder of a stage gets SIGKILL, a newcomer is started, and what the swarm does is told."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from node.demo.process import NodeProcess
from node.demo.watch import Watch
from node.ports import UnusableError

LEAST_STEPS = 60
"""Shorter demos kill nobody unless they are asked to."""
BLOCK_STAGES_FOR_STAGE_0 = 4
STEPS_AFTER = 10


@dataclass(frozen=True, slots=True)
class Kill:
    """The holder of `stage` is killed once `step` is committed."""

    stage: int
    step: int


def kills_of(words: Sequence[str], block_stages: int, steps: int, policy: str) -> list[Kill]:
    """From `--kill STAGE@STEP` (repeatable) or `none`; without any, a middle stage half-way and, with enough stages, stage 0
    later. Raises `UnusableError(2)`."""
    if not words:
        if steps < LEAST_STEPS or policy == "none" or block_stages < 3:
            return []
        later = [Kill(0, 3 * steps // 4)] if block_stages >= BLOCK_STAGES_FOR_STAGE_0 else []
        return [Kill((block_stages + 1) // 2, steps // 2), *later]
    kills = [_parsed(word, block_stages, steps) for word in words if word != "none"]
    if kills and policy == "none":
        raise UnusableError(2, "--kill: recovery.policy none rebuilds no stage; use --policy checkfree")
    return sorted(kills, key=lambda kill: kill.step)


def _parsed(word: str, block_stages: int, steps: int) -> Kill:
    stage, at, step = word.partition("@")
    if not (at and stage.isdecimal() and step.isdecimal()):
        raise UnusableError(2, f"--kill {word!r}: use STAGE@STEP, such as 2@75, or none")
    if int(stage) > block_stages:
        raise UnusableError(2, f"--kill {word}: there are stages 0 to {block_stages}")
    if not 1 <= int(step) < steps:
        raise UnusableError(2, f"--kill {word}: the step must be 1 to {steps - 1}")
    return Kill(int(stage), int(step))


@dataclass
class Killer:
    """Carries out the kills, one after another: the next one not before the swarm has got over the last one."""

    kills: list[Kill]
    watch: Watch
    join: Callable[[str, str], NodeProcess]
    """(name, invite) -> a started node."""
    say: Callable[[str], None]
    killed: list[NodeProcess] = field(default_factory=list)
    _told: set[tuple[str, int, Any]] = field(default_factory=set)
    _before: tuple[int, float] | None = None

    def look(self) -> None:
        """Kill if it is time; tell what came of the last kill."""
        step, loss = self.watch.progress.step, self.watch.progress.last_loss
        if self._before and step >= self._before[0] + STEPS_AFTER and loss is not None:
            self.say(f"loss {self._before[1]:.3f} before, {loss:.3f} {step - self._before[0]} steps after the kill")
            self._before = None
        if self.kills and step >= self.kills[0].step and self._is_whole():
            kill = self.kills[0]
            holder = next((node for node in self._living() if kill.stage in self._active(node)), None)
            if holder:
                self.kills.pop(0)
                self._kill(holder, kill.stage)

    def _kill(self, holder: NodeProcess, stage: int) -> None:
        progress = self.watch.progress
        self.say(f"step {progress.step}: kill -9 of {holder.name} (pid {holder.process.pid}), the only holder of stage {stage}")
        self._before = progress.step, progress.last_loss or 0.0
        holder.send(signal.SIGKILL)
        self.killed.append(holder)
        helper = next(node for node in self._living() if node.running)
        assert helper.running, "just looked at"
        name = f"newcomer-{len(self.killed)}"
        self.join(name, helper.running.invite)
        self.say(f"{name} joins")

    def _living(self) -> list[NodeProcess]:
        return [node for node in self.watch.nodes if node not in self.killed and node.exit_code is None]

    def _active(self, node: NodeProcess) -> list[int]:
        seats: Sequence[Mapping[str, Any]] = self.watch.statuses.get(node.name, {}).get("seats", ())
        return [int(seat["stage"]) for seat in seats if seat["role"] == "active" and seat["digest"]]

    def _is_whole(self) -> bool:
        """Every stage has a node of its own."""
        held = [self._active(node) for node in self._living()]
        stages = [stage for mine in held for stage in mine]
        num_stages = max((int(s.get("num_stages") or 0) for s in self.watch.statuses.values()), default=0)
        return bool(num_stages) and all(len(mine) <= 1 for mine in held) and set(stages) == set(range(num_stages))

    def tell(self, event: Mapping[str, Any]) -> None:
        """One line of a node's event log: what concerns a lost stage is told once."""
        sentence = told(event)
        key = str(event.get("type")), int(event.get("stage") or 0), event.get("generation") or event.get("step")
        if sentence and self.killed and key not in self._told:
            self._told.add(key)
            self.say(sentence)


def told(event: Mapping[str, Any]) -> str:
    """The event in plain words; '' for one that nobody needs to see."""
    stage = event.get("stage")
    match event.get("type"):
        case "lost":
            return f"stage {stage} lost a holder: {event['reason']}"
        case "promoted":
            return f"stage {stage} goes on at once: a copy of it is exact"
        case "rebuild":
            parts = [f"{source['coefficient']:.2f} of stage {source['stage']}" for source in event["sources"]]
            return f"stage {stage} is rebuilt: {' + '.join(parts) or 'drawn anew'} (generation {event['generation']})"
        case "rolled_back":
            return f"everybody goes back from step {event['from_step']} to step {event['step']}, as it was saved"
        case "transfer":
            return f"{event['what']}: {int(event['bytes']) / 1e6:.1f} MB handed over in {float(event['s']):.1f} s"
    return ""

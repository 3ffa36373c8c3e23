"""What strikes when: faults as data, drawn from a seed before anything runs.

Whom a fault strikes is drawn too, but as a number: who stands for it is known only when its time has come.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Kind = Literal["kill", "term", "stop", "cut_off", "pair", "noreply", "reset", "slow", "p2pd", "full_disk", "clock"]
KINDS: dict[Kind, str] = {
    "kill": "kill -9; comes back",
    "term": "SIGTERM: leaves in order; comes back",
    "stop": "SIGSTOP, then SIGCONT",
    "cut_off": "a black hole for all that it sends and gets over its streams",
    "pair": "a black hole for what one other node opened to it",
    "noreply": "what it sends back over streams that others opened is held up",
    "reset": "streams that others opened are reset, new ones too",
    "slow": "streams that others opened are slow",
    "p2pd": "kill -9 of its directory daemon",
    "full_disk": "no room left under its state directory",
    "clock": "its wall clock is stepped, and back again",
}
DEPARTURES: tuple[Kind, ...] = ("kill", "term")
SILENCES: tuple[Kind, ...] = (*DEPARTURES, "stop", "cut_off", "noreply")
"""After these the others may have to go on without the node."""
ON_LINKS: tuple[Kind, ...] = ("cut_off", "pair", "noreply", "reset", "slow")
Target = Literal["any", "coordinator", "sole holder", "stage 0"]
TARGETS: dict[Target, int] = {"any": 5, "coordinator": 2, "sole holder": 3, "stage 0": 1}
"""How often each is drawn for a silence."""
Return = Literal["", "same_identity", "new_identity"]

FIRST_S, GAP_S = 2.0, (3.0, 9.0)
SHORT_S, LONG_S = (0.5, 2.0), (4.0, 12.0)
"""How long a fault stays: less than a lapse, and more."""
AWAY_S = (0.5, 6.0)
"""Until somebody comes in place of one that went."""
STEPS_S = (-120.0, -20.0, 20.0, 120.0)
LAST_S = 5.0
"""Nothing strikes so shortly before the end."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of the schedule. Seconds count from its begin; `whom` and `other` are in [0, 1)."""

    at_s: float
    kind: Kind
    target: Target
    whom: float
    other: float
    for_s: float
    """Until it is relieved; for who went: until somebody comes."""
    back: Return = ""
    step_s: float = 0.0
    """Of the clock."""

    def __str__(self) -> str:
        how = (
            f", clock {self.step_s:+.0f} s"
            if self.step_s
            else f", back with {self.back.replace('_', ' ')}"
            if self.back
            else ""
        )
        return f"{self.at_s:6.1f} s  {self.kind:10} {self.target:12} for {self.for_s:4.1f} s{how}"


def plan(seed: int, seconds: float) -> tuple[Fault, ...]:
    """The schedule of so many seconds. Each kind comes once before any comes twice, and so on."""
    rng = random.Random(f"chaos {seed}")
    faults: list[Fault] = []
    bag: list[Kind] = []
    returns: list[Return] = []
    at = FIRST_S
    while at < seconds - LAST_S:
        if not bag:
            bag = rng.sample(list(KINDS), len(KINDS))
        if not returns:
            returns = rng.sample(["same_identity", "new_identity"], 2)
        kind = bag.pop()
        faults.append(_draw(rng, at, kind, returns.pop() if kind in DEPARTURES else ""))
        at = round(at + rng.uniform(*GAP_S), 1)
    return tuple(faults)


def _draw(rng: random.Random, at_s: float, kind: Kind, back: Return) -> Fault:
    target: Target = rng.choices(list(TARGETS), list(TARGETS.values()))[0] if kind in SILENCES else "any"
    for_s = rng.uniform(*(AWAY_S if kind in DEPARTURES else rng.choice((SHORT_S, LONG_S))))
    step_s = rng.choice(STEPS_S) if kind == "clock" else 0.0
    if kind in ("clock", "full_disk"):
        for_s = rng.uniform(*LONG_S)
    return Fault(at_s, kind, target, rng.random(), rng.random(), round(for_s, 1), back, step_s)

"""Words for people: names of peers, how a stage's weights came to be, and text without what must not be published."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from node.plain_text import printable
from node.progress import duration
from protocol.ids import PeerId
from protocol.sizes import human_bytes

MAX_NAME_CHARS = 40
MAX_TEXT_CHARS = 400
SHORT_CHARS = 12
"""Of a peer id: its last ones, as in `/status` and metrics."""

Name = Callable[[PeerId], str]
"""How people call a peer."""

# In this order: what is longer and says more comes first.
_SECRETS = (
    (re.compile(r"\bregrow1:\S*"), "(an invite)"),
    (re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://\S+", re.I), "(an address)"),
    (re.compile(r"(?:/(?:ip[46]|dns[46]?|dnsaddr|tcp|udp|quic|p2p)/[^\s/,;'\")]+)+(?:/[a-z0-9-]+)*"), "(an address)"),
    (re.compile(r"\b(?:ipv[46]:)?(?:\d{1,3}\.){3}\d{1,3}(?:(?::|%3A)\d{1,5})?\b"), "(an address)"),
    (re.compile(r"(?:ipv6:)?(?:\[|%5B)[0-9a-f:.]*:[0-9a-f:.]*(?:%\w+)?(?:\]|%5D)(?:(?::|%3A)\d{1,5})?", re.I), "(an address)"),
    (re.compile(r"(?<![\w.])(?=[0-9a-f:]*::|(?:[0-9a-f]{1,4}:){7})[0-9a-f:]{3,45}(?:%\w+)?(?!\w)", re.I), "(an address)"),
    (re.compile(r"\b(?:[a-z0-9-]{1,63}\.)+[a-z]{2,24}:\d{1,5}\b|\blocalhost(?::\d{1,5})?\b", re.I), "(an address)"),
    (re.compile(r"(?<![^\s'\"(=:,\[{])~?/[^\s'\":;,)]+"), "(a path)"),
    (re.compile(r"\b[A-Z]:\\[^\s'\":;,)]+"), "(a path)"),
)


def public(text: object, limit: int = MAX_TEXT_CHARS) -> str:
    """One printable line in which addresses, paths and invites are named, not told."""
    shown = printable(text, 4 * limit)
    for pattern, instead in _SECRETS:
        shown = pattern.sub(instead, shown)
    return printable(shown, limit)


def short(peer: PeerId) -> str:
    """A peer in few characters."""
    return peer[-SHORT_CHARS:]


def named(name: object) -> str:
    """What a peer calls itself, fit to be shown: one line, no control or direction marks, no address."""
    return public(str(name).strip()[: 4 * MAX_NAME_CHARS], MAX_NAME_CHARS)


def listed(parts: Sequence[object]) -> str:
    """`2`, `2 and 4`, `1, 2 and 4`."""
    words = [str(part) for part in parts]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else "nothing"


def mixture(sources: Sequence[Mapping[str, Any]]) -> str:
    """`stages 2 and 4, .44 / .56`; coefficients to two digits."""
    stages = [source.get("stage") for source in sources]
    if len(stages) == 1:
        return f"stage {stages[0]}"
    shares = " / ".join(f"{float(source.get('coefficient', 0.0)):.2f}".lstrip("0") for source in sources)
    return f"stages {listed(stages)}, {shares}"


def made_of(facts: Mapping[str, Any], name: Name) -> str:
    """What a `rebuild` makes a stage of."""
    shadow, sources, stage = facts.get("shadow"), facts.get("sources", ()), facts.get("stage")
    if shadow:
        return f"what {name(shadow['keeper'])} kept of it, chunks of steps {shadow['oldest_step']} to {shadow['newest_step']}"
    if not sources:
        return "the seed, drawn anew"
    return "its own older state" if [source.get("stage") for source in sources] == [stage] else mixture(sources)


def provenance(stage: int, facts: Mapping[str, Any], name: Name) -> str:
    """How the weights of a seat came to be, as in `/status`."""
    step = facts.get("step")
    of = f" as of step {step}" if step is not None else ""
    match facts.get("rung"):
        case "seed":
            text = "made from the run's seed"
        case "copy":
            text = f"copied from a living replica{of}" if facts.get("state_id") else "being copied from a living replica"
        case "promotion":
            text = f"an exact copy that took over at step {step}"
        case "handover":
            text = f"handed over by its last holder{of}"
        case "parked":
            text = f"kept by a node without room for it, and taken over{of}"
        case "returned":
            text = f"its own, after it was away{of}"
        case "older_copy":
            text = f"an older copy of the stage, {facts.get('steps_behind', 'some')} steps behind"
        case "shadow":
            text = f"restored of {made_of({'shadow': facts}, name)}" if facts.get("keeper") else "restored of a shadow"
        case "recovery":
            text = f"rebuilt from {made_of({**facts, 'stage': stage}, name)}{of}"
        case "checkpoint":
            text = f"as it was saved after step {step}" if step else "as it was at the beginning"
        case other:
            text = public(other)
    return text + _moved(facts, name)


def _moved(facts: Mapping[str, Any], name: Name) -> str:
    if not facts.get("bytes"):
        return ""
    seconds = float(facts.get("transfer_s") or 0.0)
    speed = f" ({mbit(float(facts['bytes']) / seconds)})" if seconds > 0.05 else ""
    givers = listed([name(peer) for peer in facts.get("from", ())][:4])
    return f"; {human_bytes(facts['bytes'])} from {givers} in {took(seconds)}{speed}"


def took(seconds: float) -> str:
    """`0.4 s`, `12 s`, `1m15s`."""
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s" if seconds < 60 else duration(seconds)


def mbit(bytes_per_s: float) -> str:
    """A speed of a link."""
    rate = bytes_per_s * 8e-6
    return f"{rate:.1f} Mbit/s" if rate < 9.95 else f"{rate:,.0f} Mbit/s"

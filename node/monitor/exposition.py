"""Prometheus text of a stranger: read strictly, kept as far as it is ours, and written anew, so that nothing else gets through.

A line that is no Prometheus text is a `ValueError`: the whole text is refused. What is well formed but must not be passed on is
left out and counted: names that are not a node's, samples that are there already, labels that are reserved or too long, and
what is beyond `MAX_SERIES`. NaN and infinite values are as if they were not known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from node.plain_text import printable

MAX_SERIES = 1000
MAX_LABELS = 16
MAX_NAME_CHARS = 100
MAX_VALUE_CHARS = 200
MAX_HELP_CHARS = 300
PREFIXES = ("regrow_", "process_")
NOT_THEIRS = ("regrow_swarm_", "regrow_monitor_")
"""What only a monitor says."""
TYPES = ("counter", "gauge", "histogram", "summary", "untyped")
_SUFFIXES = ("_bucket", "_sum", "_count")
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+([^ \t]+)(?:[ \t]+-?[0-9]+)?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')
_META = re.compile(r"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*)(?: (.*))?")
_ESCAPE = re.compile(r"\\[\\\"n]")
Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Family:
    """Samples of one metric."""

    kind: str = "untyped"
    help: str = ""
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)


@dataclass(slots=True)
class Exposition:
    """What was kept of a node's text."""

    families: dict[str, Family] = field(default_factory=dict)
    num_series: int = 0
    num_dropped: int = 0

    def value(self, name: str, **labels: str) -> float | None:
        """One sample."""
        return self.by(name).get(tuple(sorted(labels.items())))

    def by(self, name: str) -> Mapping[Labels, float]:
        """All samples of a name, by their labels in order."""
        family = self.families.get(name)
        return {key: value for (sample, key), value in family.samples.items() if sample == name} if family else {}

    def text(self) -> str:
        """As Prometheus text."""
        lines = []
        for name, family in self.families.items():
            if not family.samples:
                continue
            lines += [f"# HELP {name} {family.help}"] if family.help else []
            lines.append(f"# TYPE {name} {family.kind}")
            lines += [f"{sample}{_written(key)} {value!r}" for (sample, key), value in family.samples.items()]
        return "\n".join(lines) + "\n" if lines else ""


def read(data: bytes) -> Exposition:
    """See the module. Raises `ValueError`."""
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError:
        raise ValueError("its metrics are no UTF-8") from None
    found = Exposition()
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            _note(found, line)
        elif line.strip():
            try:
                _take(found, line)
            except ValueError as error:
                raise ValueError(printable(f"line {number} of its metrics: {error}", 300)) from None
    return found


def _note(found: Exposition, line: str) -> None:
    if (meta := _META.fullmatch(line)) is None or not _is_theirs(meta[2]):
        return
    if len(found.families) >= MAX_SERIES:
        found.num_dropped += 1
        return
    family = found.families.setdefault(meta[2], Family())
    if meta[1] == "HELP":
        family.help = printable(meta[3] or "", MAX_HELP_CHARS).replace("\\", "/")
    elif meta[3] in TYPES:
        family.kind = meta[3]


def _take(found: Exposition, line: str) -> None:
    match = _SAMPLE.fullmatch(line.strip())
    if match is None:
        raise ValueError(f"{line[:60]!r} is no sample")
    name, value = match[1], float(match[3])
    text = match[2] or ""
    labels = _labels_again(text) if len(text) <= MAX_VALUE_CHARS else _labels(text)
    if not math.isfinite(value):
        return
    if not _is_theirs(name) or labels is None or found.num_series >= MAX_SERIES:
        found.num_dropped += 1
        return
    samples = found.families.setdefault(_family_of(found, name), Family()).samples
    if (name, labels) in samples:
        found.num_dropped += 1
        return
    samples[name, labels] = value
    found.num_series += 1


def _labels(text: str) -> Labels | None:
    """In order; None where they must not be passed on."""
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None or match[1] in labels:
            raise ValueError(f"{text[at : at + 60]!r} are no labels")
        labels[match[1]] = _ESCAPE.sub(lambda found: "\n" if found[0] == "\\n" else found[0][1], match[2])
        at = match.end()
    is_fine = len(labels) <= MAX_LABELS and all(
        len(name) <= MAX_NAME_CHARS and not name.startswith("__") and len(value) <= MAX_VALUE_CHARS
        for name, value in labels.items()
    )
    return tuple(sorted((name, printable(value, MAX_VALUE_CHARS)) for name, value in labels.items())) if is_fine else None


_labels_again = lru_cache(4096)(_labels)
"""Nodes tell the same labels all the time."""


def _is_theirs(name: str) -> bool:
    return name.startswith(PREFIXES) and not name.startswith(NOT_THEIRS) and len(name) <= MAX_NAME_CHARS


def _family_of(found: Exposition, name: str) -> str:
    for suffix in _SUFFIXES:
        base = name.removesuffix(suffix)
        if base != name and base in found.families and found.families[base].kind in ("histogram", "summary"):
            return base
    return name


def _written(labels: Labels) -> str:
    if not labels:
        return ""
    escaped = (f'{name}="{_escaped(value)}"' for name, value in labels)
    return "{" + ",".join(escaped) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

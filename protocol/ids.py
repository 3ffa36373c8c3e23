"""Names of things that peers agree on: peers, incarnations, ballots, and hashes of plain data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

PeerId = str
RecordId = str
StateId = str

ID_HEX_DIGITS = 32
MAX_STATES_NAMED = 1024
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A peer in one of its lives: a restarted incarnation is another member."""

    peer: PeerId
    incarnation: int

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True  # most often it is the one on the roster
        if not isinstance(other, Member):
            return NotImplemented
        return self.peer == other.peer and self.incarnation == other.incarnation

    def __hash__(self) -> int:
        return hash(self.peer)  # a string remembers it


@dataclass(frozen=True, slots=True, order=True)
class Ballot:
    """(term, coordinator id); the greater one fences the smaller."""

    term: int
    peer: PeerId

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True  # most often it is the one that is followed
        if not isinstance(other, Ballot):
            return NotImplemented
        return self.term == other.term and self.peer == other.peer

    def __hash__(self) -> int:
        return hash((self.term, self.peer))


NO_BALLOT = Ballot(0, "")
ATTEMPTS_PER_TERM = 1000
"""Attempts of term t are numbered from 1000 (t - 1) + 1: those of a new coordinator are above all earlier ones of the step."""


def hash_of(value: object) -> str:
    """32 hex digits of the sha256 of `value` as canonical JSON (sorted keys, no spaces)."""
    return hashlib.sha256(_canonical.encode(value).encode()).hexdigest()[:ID_HEX_DIGITS]


def initial_state_id(run_id: str, stage: int) -> StateId:
    """state_id of a stage whose weights come from the seed."""
    return hash_of([run_id, stage])


@lru_cache(MAX_STATES_NAMED)
def next_state_id(parent: StateId, record: RecordId) -> StateId:
    """state_id of a stage after `record` was applied to `parent`."""
    return hash_of([parent, record])


def bitmap(microbatches: Iterable[int]) -> str:
    """A set of microbatches as the hex digits of an integer with those bits set ('0' for none)."""
    bits = 0
    for microbatch in microbatches:
        bits |= 1 << microbatch
    return f"{bits:x}"


def members_of(bits: str) -> list[int]:
    """The microbatches in a bitmap, ascending. Raises `ValueError` if it is not hexadecimal."""
    value, out = int(bits, 16), []
    while value:
        low = value & -value
        out.append(low.bit_length() - 1)
        value ^= low
    return out

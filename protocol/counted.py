"""Who is counted for what: the root that a Commit carries of all shares, and what shows one share of it.

A leaf is one member's share of one stage: hash of (run, step, peer, incarnation, stage, microbatches, tokens); a share of
nothing has none. The leaves of a stage, by peer, are the lowest row of a tree, and the stages' roots, ascending, the lowest row
of the tree above: so whoever summed a stage can make the lower part of its path itself, and needs of the upper part only what
lies beside it. In a tree two neighbours make a node; who has no neighbour goes up as it is. Leaves and nodes are hashed with
different words in front, so that neither passes for the other. Hashes are as long as ids.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache

from protocol.ids import ID_HEX_DIGITS, Member, PeerId
from protocol.manifest import Manifest
from protocol.records import Share

LEAF, NODE, EMPTY = b"regrow leaf\0", b"regrow node\0", b"regrow none\0"
LEFT, RIGHT = "l", "r"
MAX_PATH = 48
"""Neighbours beside a way up: of more members than there can be."""
MAX_NUMBER = (1 << 63) - 1
MAX_CLAIM_CHARS = 8192
MAX_TREES = 16
MAX_RUNS = 16
MAX_LEAVES = 512
MAX_KEPT_ROWS = 64
_BITMAP = re.compile(r"[1-9a-f][0-9a-f]{0,1023}")
_BESIDE = re.compile(rf"[{LEFT}{RIGHT}][0-9a-f]{{{ID_HEX_DIGITS}}}")
_trees: dict[int, tuple[tuple[Share, ...], Tree]] = {}
_runs: dict[int, tuple[Manifest, str]] = {}


def _hash(word: bytes, data: bytes) -> str:
    return hashlib.sha256(word + data).hexdigest()[:ID_HEX_DIGITS]


def _node(left: str, right: str) -> str:
    return _hash(NODE, bytes.fromhex(left) + bytes.fromhex(right))


@dataclass(frozen=True, slots=True)
class Claim:
    """`peer`, in this life, accumulated these microbatches into the stage's gradient of the step, and here is the way from its
    leaf up to the commit's root."""

    run: str
    step: int
    peer: PeerId
    incarnation: int
    stage: int
    microbatches: str
    """A bitmap."""
    tokens: int
    """Predicted tokens of these microbatches."""
    path: tuple[str, ...]
    """What lies beside the way, from the leaf up: the side that it is on, and its hash."""

    def text(self) -> str:
        """The one way to write it."""
        return json.dumps(astuple(self), separators=(",", ":"))


def claim_of(text: str) -> Claim:
    """The claim in a text, which a stranger may have written. Raises `ValueError`."""
    if len(text) > MAX_CLAIM_CHARS:
        raise ValueError(f"a claim of {len(text)} characters; {MAX_CLAIM_CHARS} are allowed")
    try:
        told = json.loads(text)
    except RecursionError:
        raise ValueError("not a claim") from None
    if type(told) is not list or len(told) != 8 or type(told[7]) is not list:
        raise ValueError("not a claim")
    run, step, peer, incarnation, stage, microbatches, tokens, path = told
    claim = Claim(run, step, peer, incarnation, stage, microbatches, tokens, tuple(path))
    if not _is_sound(claim) or claim.text() != text:
        raise ValueError("not a claim as it is written")
    return claim


def _is_sound(claim: Claim) -> bool:
    words = (claim.run, claim.peer, claim.microbatches, *claim.path)
    numbers = (claim.step, claim.incarnation, claim.stage, claim.tokens)
    if any(type(word) is not str for word in words) or any(type(n) is not int or not 0 <= n <= MAX_NUMBER for n in numbers):
        return False
    in_form = _BITMAP.fullmatch(claim.microbatches) and all(_BESIDE.fullmatch(beside) for beside in claim.path)
    return bool(in_form) and len(claim.path) <= MAX_PATH


@lru_cache(MAX_LEAVES)
def _leaf(run: str, step: int, peer: PeerId, incarnation: int, stage: int, microbatches: str, tokens: int) -> str:
    told = json.dumps([run, step, peer, incarnation, stage, microbatches, tokens], separators=(",", ":"))
    return _hash(LEAF, told.encode())


def root_of(claim: Claim) -> str:
    """Where the claim's path ends."""
    at = _leaf(claim.run, claim.step, claim.peer, claim.incarnation, claim.stage, claim.microbatches, claim.tokens)
    for beside in claim.path:
        at = _node(beside[1:], at) if beside[0] == LEFT else _node(at, beside[1:])
    return at


def verify(claim: Claim, root: str) -> bool:
    """Does the commit with this root count what is claimed? `root` is of the claimed run and step."""
    return _is_sound(claim) and root_of(claim) == root


@lru_cache(MAX_KEPT_ROWS)
def _rows(lowest: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """All rows of a tree, the root's last."""
    rows = [lowest or (_hash(EMPTY, b""),)]
    while len(rows[-1]) > 1:
        row = rows[-1]
        pairs = [_node(*row[at : at + 2]) for at in range(0, len(row) - 1, 2)]
        rows.append((*pairs, *row[len(row) // 2 * 2 :]))
    return tuple(rows)


def _beside(rows: Sequence[Sequence[str]], place: int) -> tuple[str, ...]:
    """What lies beside the way up from a place in the lowest row."""
    found = []
    for row in rows[:-1]:
        if place ^ 1 < len(row):
            found.append(row[place ^ 1])
        place //= 2
    return tuple(found)


def _sides(place: int, size: int) -> str:
    """On which sides that is, in a tree with so many in its lowest row."""
    sides = ""
    while size > 1:
        if place ^ 1 < size:
            sides += LEFT if place % 2 else RIGHT
        place, size = place // 2, (size + 1) // 2
    return sides


class Tree:
    """Of all shares of a step."""

    def __init__(self, shares: tuple[Share, ...], step: int, manifest: Manifest) -> None:
        self.step = step
        self._of = manifest
        by_stage: dict[int, list[Share]] = {stage: [] for stage in range(manifest.num_stages)}
        for share in shares:
            by_stage.setdefault(share.stage, []).append(share)
        self._stages = sorted(by_stage)
        self._rows = _rows(tuple(stage_rows(by_stage[stage], step, manifest)[-1][0] for stage in self._stages))
        self._mine: dict[PeerId, list[int]] = {}
        for stage in self._stages:
            for share in by_stage[stage]:
                if int(share.microbatches, 16):
                    self._mine.setdefault(share.member.peer, []).append(stage)
        self.root = self._rows[-1][0]

    def fits(self, step: int, manifest: Manifest) -> bool:
        """Is it of this step of this run?"""
        return self.step == step and self._of is manifest

    def above(self, stage: int) -> tuple[str, ...]:
        """What lies beside the way from the stage's root up."""
        return _beside(self._rows, self._stages.index(stage))

    def told(self, peer: PeerId) -> tuple[str, ...]:
        """The same for all stages of which the peer has a share, ascending, one after another: what it lacks to show them."""
        return tuple(beside for stage in self._mine.get(peer, ()) for beside in self.above(stage))


def _run_of(manifest: Manifest) -> str:
    """Its run_id, a hash of all of it, is asked for many times over."""
    known = _runs.get(id(manifest))
    if known is None:
        known = _runs[id(manifest)] = manifest, manifest.run_id
        if len(_runs) > MAX_RUNS:
            del _runs[next(iter(_runs))]
    return known[1]


def tree_of(shares: tuple[Share, ...], step: int, manifest: Manifest) -> Tree:
    """The last ones are remembered, by object: one is asked for many times over."""
    known = _trees.get(id(shares))
    if known is None or not known[1].fits(step, manifest):
        known = _trees[id(shares)] = shares, Tree(shares, step, manifest)
        if len(_trees) > MAX_TREES:
            del _trees[next(iter(_trees))]
    return known[1]


def contributors_of(shares: tuple[Share, ...], step: int, manifest: Manifest) -> str:
    """The root that the step's Commit carries if these are all shares of it, in any order."""
    return tree_of(shares, step, manifest).root


def _counting(shares: Iterable[Share]) -> list[Share]:
    return sorted((s for s in shares if int(s.microbatches, 16)), key=lambda s: (s.member, int(s.microbatches, 16)))


def _tokens(share: Share, manifest: Manifest) -> int:
    return int(share.microbatches, 16).bit_count() * manifest.batch.tokens_per_microbatch


def stage_rows(shares: Iterable[Share], step: int, manifest: Manifest) -> tuple[tuple[str, ...], ...]:
    """The tree of one stage."""
    run = _run_of(manifest)
    return _rows(
        tuple(
            _leaf(run, step, s.member.peer, s.member.incarnation, s.stage, f"{int(s.microbatches, 16):x}", _tokens(s, manifest))
            for s in _counting(shares)
        )
    )


def num_above(stage: int, manifest: Manifest) -> int:
    """How many hashes `Tree.above` has."""
    return len(_sides(stage, manifest.num_stages))


def show(me: Member, shares: Sequence[Share], above: Sequence[str], step: int, manifest: Manifest) -> Claim:
    """What `me` can show of its own share among these, which are all of one stage; `above`: `Tree.above` of that stage."""
    row = _counting(shares)
    place = next(at for at, share in enumerate(row) if share.member == me)
    own, rows = row[place], stage_rows(shares, step, manifest)
    beside = [*zip(_sides(place, len(row)), _beside(rows, place), strict=True)]
    beside += zip(_sides(own.stage, manifest.num_stages), above, strict=True)
    path = tuple(side + name for side, name in beside)
    bits = f"{int(own.microbatches, 16):x}"
    return Claim(_run_of(manifest), step, me.peer, me.incarnation, own.stage, bits, _tokens(own, manifest), path)

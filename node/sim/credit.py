"""What must hold of who is counted: each decided root is that of what the members themselves noted, and each claim fits it.

The root is made here in another way than in `protocol.counted`, from what was accumulated and not from what was told of it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from node.sim.machine import Key, require
from node.sim.nodes import SimNode
from protocol.counted import Claim, verify
from protocol.ids import Member, members_of
from protocol.manifest import Manifest
from protocol.records import Commit, Share

Place = tuple[int, Member]
"""A stage and who accumulated there."""
KEPT_ROOTS = 512


class Credit:
    """What is counted in one simulated run. Raises `BrokenError`."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest, self._run = manifest, manifest.run_id
        self._counted: dict[str, dict[Place, list[int]]] = {}
        """By root: what each commit counts."""
        self._told: set[tuple[str, Place]] = set()
        self.num_claims = 0
        self.checks: dict[str, Callable[[SimNode, Mapping[str, Any]], None]] = {
            "committed": self.committed,
            "counted": self.claimed,
            "uncounted": self.disputed,
        }
        """Of what is noted."""

    def decided(
        self,
        commit: Commit,
        shares: tuple[Share, ...],
        seats: Collection[Place],
        noted: Counter[tuple[Member, int, Key, int]],
    ) -> None:
        """A commit is decided; `noted`: who accumulated what. Where two have accumulated a microbatch, as one of them was lost
        to the attempt, its share counts that is named."""
        key, every = (commit.step, commit.attempt), range(self._manifest.batch.num_microbatches)
        named = {(s.stage, m): s.member for s in shares for m in members_of(s.microbatches)}
        counted: dict[Place, list[int]] = {}
        for stage, member in seats:
            mine = [m for m in every if noted[member, stage, key, m]]
            own = [m for m in mine if (other := named.get((stage, m))) in (None, member) or not noted[other, stage, key, m]]
            if own:
                counted[stage, member] = own
        root = root_by_hand(counted, commit.step, self._manifest, self._run)
        require(root == commit.contributors, f"S2: the commit of step {commit.step} does not count who accumulated what")
        self._counted[root] = counted
        while len(self._counted) > KEPT_ROOTS:
            del self._counted[next(iter(self._counted))]

    def claimed(self, node: SimNode, fields: Mapping[str, Any]) -> None:
        """A node shows what it is counted for: once, and what it accumulated."""
        root, known = fields["root"], {name: value for name, value in fields.items() if name != "root"}
        told = Claim(**known | {"path": tuple(fields["path"])})
        where = told.stage, node.spec.member
        require(verify(told, root) and told.run == self._run, f"{node!r} claims {told}, which {root} does not show")
        require((told.peer, told.incarnation) == (where[1].peer, where[1].incarnation), f"{node!r} claims the work of another")
        require((root, where) not in self._told, f"{node!r} claims its share of stage {told.stage}, step {told.step} twice")
        if root in self._counted:
            own = self._counted[root].get(where, [])
            require(
                members_of(told.microbatches) == own, f"{node!r} claims {told.microbatches} of stage {told.stage}, not {own}"
            )
        self._told.add((root, where))
        self.num_claims += 1

    def disputed(self, node: SimNode, fields: Mapping[str, Any]) -> None:
        """A node says that a commit does not count what it did: then it does not, for it was lost to the attempt."""
        own = self._counted.get(fields["root"], {}).get((fields["stage"], node.spec.member), [])
        require(members_of(fields["microbatches"]) != own, f"{node!r} is counted in step {fields['step']}, and says it is not")

    def committed(self, node: SimNode, fields: Mapping[str, Any]) -> None:
        """A node notes whose work it applies."""
        every = sorted(m for bits in fields["contributors"].values() for m in members_of(bits))
        whole = list(range(self._manifest.batch.num_microbatches))
        require(every == whole, f"S2: {node!r} notes the contributors of {every} for {fields}")


def root_by_hand(counted: Mapping[Place, list[int]], step: int, manifest: Manifest, run: str) -> str:
    """The root over what was accumulated."""
    stages = []
    for stage in range(manifest.num_stages):
        leaves = []
        for (at, member), microbatches in sorted(counted.items()):
            if at == stage:
                bits = f"{sum(1 << m for m in microbatches):x}"
                tokens = len(microbatches) * manifest.batch.microbatch_samples * manifest.batch.context_tokens
                told = [run, step, member.peer, member.incarnation, stage, bits, tokens]
                leaves.append(_digest(b"regrow leaf\0" + json.dumps(told, separators=(",", ":")).encode()))
        stages.append(_top(leaves) if leaves else _digest(b"regrow none\0"))
    return _top(stages).hex()


def _top(row: list[bytes]) -> bytes:
    """By halves: the left one has as many leaves as the largest power of two that leaves some for the right one."""
    if len(row) == 1:
        return row[0]
    half = 1 << (len(row) - 1).bit_length() - 1
    return _digest(b"regrow node\0" + _top(row[:half]) + _top(row[half:]))


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:16]

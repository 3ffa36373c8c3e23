"""A member's side of what is counted: what it shows of its own shares, and where the record says otherwise than it knows.

Whoever sums a stage was told whose each of its microbatches is, and began only if its own were right. So it knows the stage's
leaves; what it lacks of its path comes with the decision, or follows from the shares that voters are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from protocol.attempt import Attempt
from protocol.chain import Chain
from protocol.commands import Command, Note, Say
from protocol.counted import num_above, root_of, show, tree_of
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.records import Commit, Record, Share
from protocol.seat import Seat


def above_of(peer: PeerId, record: Record, shares: tuple[Share, ...], manifest: Manifest) -> tuple[str, ...]:
    """What the peer is told with the decision, to show what it is counted for: a few hashes, however large the swarm is."""
    return tree_of(shares, record.step, manifest).told(peer) if isinstance(record, Commit) and shares else ()


def summed_at(attempt: Attempt, stage: int, chain: Chain) -> tuple[Share, ...]:
    """The stage's shares as this node was told them when it began to sum; the head is still, or was, the attempt's parent."""
    known = ((chain.member_of(peer), bits) for peer, bits in attempt.summed.items())
    return tuple(Share(stage, member, bits) for member, bits in known if member and int(bits, 16))


def contradiction(commit: Commit, shares: tuple[Share, ...], me: PeerId, seats: Mapping[int, Seat], chain: Chain) -> str:
    """'' if the shares are those that this node summed itself in that attempt, where they name it at all; whoever is not named
    may have been excluded for good reason."""
    for stage, seat in sorted(seats.items()):
        attempt, told = seat.attempt, {s.member: s.microbatches for s in shares if s.stage == stage and int(s.microbatches, 16)}
        if attempt is None or attempt.reduced is None or attempt.open.parent != commit.parent:
            continue
        if attempt.open.attempt != commit.attempt or me not in {member.peer for member in told}:
            continue
        if told != {s.member: s.microbatches for s in summed_at(attempt, stage, chain)}:
            return f"it does not count what was summed of stage {stage} here"
    return ""


class Credits:
    """What the node `me` shows of one commit: one stage after another, ascending, each of which it applies."""

    def __init__(self, me: PeerId, commit: Commit, shares: tuple[Share, ...], above: Sequence[str], manifest: Manifest) -> None:
        self._me, self._commit, self._shares, self._above = me, commit, shares, list(above)
        self._manifest = manifest

    def of(self, stage: int, attempt: Attempt, chain: Chain) -> list[Command]:
        """Note what is counted, with the path that shows it; or that something else is than what was summed here."""
        if attempt.open.attempt != self._commit.attempt:
            return []  # an equal sum of another attempt: whose work that was is not known here
        mine, me = summed_at(attempt, stage, chain), chain.member_of(self._me)
        if me is None or me not in {share.member for share in mine}:
            return []
        above = self._take(stage)
        if above is None:
            return []
        shown = show(me, mine, above, self._commit.step, self._manifest)
        if root_of(shown) == self._commit.contributors:
            return [Note("counted", asdict(shown) | {"path": list(shown.path), "root": self._commit.contributors})]
        where = {"stage": stage, "step": self._commit.step, "microbatches": shown.microbatches}
        return [
            Note("uncounted", where | {"root": self._commit.contributors}),
            Say(f"step {where['step']} does not count what was computed of stage {stage} here: the record names other shares"),
        ]

    def _take(self, stage: int) -> tuple[str, ...] | None:
        """What lies above the stage; None where nobody told."""
        if self._shares:
            return tree_of(self._shares, self._commit.step, self._manifest).above(stage)
        size = num_above(stage, self._manifest)
        if len(self._above) < size:
            return None
        above, self._above = tuple(self._above[:size]), self._above[size:]
        return above

"""S2 while work changes hands: what a coordinator tells its members of an attempt gives each microbatch of a stage to one of
them, and nobody accumulates what it was not given."""

from __future__ import annotations

from collections import Counter, defaultdict

from node.sim.machine import BrokenError
from protocol.ids import Ballot, Member, PeerId
from protocol.messages import OpenStep

Number = tuple[Ballot, int, int, int]
"""(ballot, step, attempt, amendment)"""
Piece = tuple[int, int]
"""(stage, microbatch)"""


class Ownership:
    """Raises `BrokenError`. What a coordinator tells itself is not seen: it says nothing to itself on the wire."""

    def __init__(self) -> None:
        self.amendments: Counter[tuple[int, int]] = Counter()
        """The newest of each (step, attempt)."""
        self._owner: defaultdict[Number, dict[Piece, PeerId]] = defaultdict(dict)
        self._given: defaultdict[tuple[PeerId, Ballot, int, int], set[Piece]] = defaultdict(set)

    def told(self, peer: PeerId, step: OpenStep) -> None:
        """A coordinator tells a member its work."""
        number = (step.ballot, step.step, step.attempt, step.amendment)
        owners, given = self._owner[number], self._given[peer, *number[:3]]
        self.amendments[number[1:3]] = max(step.amendment, self.amendments[number[1:3]])
        for work in step.seats:
            for microbatch in (*work.microbatches, *work.taken):
                piece = (work.stage, microbatch)
                known = owners.setdefault(piece, peer)
                if known != peer:
                    raise BrokenError(f"S2: {piece} belongs to {known} and to {peer} in {number}")
                given.add(piece)

    def forget(self, step: int) -> None:
        """Of steps before this one nothing is told any more."""
        for key in [key for key in self.amendments if key[0] < step]:
            del self.amendments[key]
        for number in [number for number in self._owner if number[1] < step]:
            del self._owner[number]
        for given in [given for given in self._given if given[2] < step]:
            del self._given[given]

    def accumulated(self, member: Member, ballot: Ballot, step: int, attempt: int, piece: Piece) -> None:
        """A member says that it has accumulated a microbatch."""
        given = self._given[member.peer, ballot, step, attempt]
        if piece not in given and member.peer != ballot.peer:
            where = f"in attempt {attempt} at step {step}"
            raise BrokenError(f"S2: {member} accumulates {piece} {where}, and was given {sorted(given)}")

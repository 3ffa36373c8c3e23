"""Who wants to coordinate: the promise phase of Multi-Paxos, for the place after this node's head.

With a quorum of promises the candidate proposes again, under its own ballot, what the highest lower ballot left behind at any
of those that promised: it may be decided already. A record that it takes over may change the voters, so after each one it asks
again; with a quorum of promises and nothing held it coordinates. It learns what others know to be decided, and tells them what
they lack. A later Roster that it makes up itself needs no new promises: whoever knows that Roster has heard of its ballot.

Where no quorum is left it asks all that are there (`forks`). Those that promise may part from the rest with a Roster of their
own, which needs no vote: nobody else makes a record of that name, and all that it seats have promised.
"""

from __future__ import annotations

from collections.abc import Collection

from protocol.acceptor import MAX_TOLD
from protocol.chain import Chain, is_quorum
from protocol.fork import fork_roster, may_part
from protocol.ids import Ballot, Member
from protocol.messages import Held, Prepare, Promise, Proposed
from protocol.proposal import Proposal
from protocol.records import Roster


class Candidate:
    """Reads the chain and never changes it: whoever owns it appends what is learned or decided."""

    def __init__(self, ballot: Ballot, chain: Chain, forks: frozenset[Member] = frozenset()) -> None:
        self.ballot = ballot
        self.forks = forks
        """Whom it asks, beside the voters, where it is ready to go on without a quorum."""
        self.promises: dict[Member, Promise] = {}
        self.proposal: Proposal | None = None
        self._chain = chain

    def prepare(self, voter: Member) -> Prepare:
        """What the voter is asked, with the decided records that it is known to lack."""
        told = self.promises.get(voter)
        lacks = (self._chain.after(told.head) or []) if told else []
        decided = tuple(Proposed(self.ballot, d.record, d.shares) for d in lacks[:MAX_TOLD])
        return Prepare(self.ballot, self._chain.head, decided, bool(self.forks))

    def on_promise(self, voter: Member, promise: Promise) -> tuple[Proposed, ...]:
        """Somebody promised. Returns records that it knows to be decided, oldest first; some may be known here too."""
        if promise.ballot != self.ballot:
            return ()
        known = self.promises.get(voter)
        if known is None or known.head != self._chain.head:
            self.promises[voter] = promise
        return promise.decided

    def on_held(self, voter: Member, message: Held) -> None:
        """A voter holds what was proposed again."""
        if self.proposal:
            self.proposal.enter(voter, message)

    def advance(self) -> Proposal | None:
        """The record that is decided now, for the owner to append and to tell everybody; None if there is none."""
        chain, proposal = self._chain, self.proposal
        if proposal and proposal.record.parent != chain.head:
            proposal = self.proposal = None
        if proposal is None and self._has_quorum():
            left = [held for promise in self._counted().values() for held in promise.held]
            if left:
                newest = max(left, key=lambda held: held.ballot)
                proposal = self.proposal = Proposal(self.ballot, newest.record, newest.shares)
        return proposal if proposal and proposal.is_decided(chain.voters) else None

    @property
    def has_won(self) -> bool:
        """A quorum promised, and none of those that did holds anything: the rest of the chain is this ballot's to write."""
        return self._has_quorum() and not any(promise.held for promise in self._counted().values())

    def fork(self, me: Member, wait: bool, heard: Collection[Member] = ()) -> Roster | None:
        """The Roster of those that promised, if they can go on (`may_part`); None if not, or if a quorum promised. `wait`: for
        all that were asked. `heard`: who answers now."""
        chain = self._chain
        here = {m for m in self.forks if m in self.promises and self.promises[m].head == chain.head}
        if self.proposal or self._has_quorum() or me not in here or (wait and here != self.forks):
            return None
        return fork_roster(chain, self.ballot, here, me) if may_part(chain, here, heard) else None

    @property
    def num_promised(self) -> int:
        """Voters that promised and stand where this node stands."""
        return len(self._counted())

    def _has_quorum(self) -> bool:
        return is_quorum(set(self._counted()), self._chain.voters)

    def _counted(self) -> dict[Member, Promise]:
        """A promise counts for the place after the head that its voter has."""
        chain = self._chain
        here = {m: p for m, p in self.promises.items() if m in chain.voters and p.head == chain.head}
        return {m: p for m, p in here.items() if all(not chain.fits(held.record) for held in p.held)}

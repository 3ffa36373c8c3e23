"""Whom to do without when attempt after attempt of a step fails at the same peer: bad tensors, broken sends.

A receiver names the peer whose tensor it refused, a sender the one that it cannot reach. Either of the two may be at fault or
lie, and nobody can tell which. So it takes several attempts, it never costs a stage its last replica, and whoever has had
somebody dropped is itself the one to go when it names yet another one.
"""

from __future__ import annotations

from protocol.chain import Chain
from protocol.ids import Member, PeerId

ATTEMPTS = 3
"""So many attempts at one step must fail at the same peer."""
MEMORY_STEPS = 100
"""For so long it is remembered who had somebody dropped."""


class Blame:
    """The coordinator's memory of who named whom."""

    def __init__(self, chain: Chain, me: Member) -> None:
        self._chain, self._me = chain, me
        self._step = -1
        self._named: dict[Member, set[Member]] = {}
        self._attempts: dict[Member, set[int]] = {}
        self._had_dropped: dict[Member, int] = {}

    def enter(self, by: Member, peer: PeerId, step: int, attempt: int) -> tuple[Member, str] | None:
        """`by` names `peer` in an attempt that is void now. Returns who must go, and why; None if nobody."""
        if step != self._step:
            self._step, self._named, self._attempts = step, {}, {}
            self._had_dropped = {m: at for m, at in self._had_dropped.items() if step - at < MEMORY_STEPS}
        named = self._chain.member_of(peer)
        if named is None or named == by:
            return None
        self._named.setdefault(named, set()).add(by)
        self._attempts.setdefault(named, set()).add(attempt)
        return self._judge(by, named) if len(self._attempts[named]) >= ATTEMPTS else None

    def _judge(self, by: Member, named: Member) -> tuple[Member, str] | None:
        accusers = self._named[named]
        why = f"{ATTEMPTS} attempts at step {self._step} failed at it, says {by.peer[-8:]}"
        if len(accusers) == 1 and by in self._had_dropped and self._is_spare(by):
            return by, f"it finds fault with one peer after another, now with {named.peer[-8:]}"
        if not self._is_spare(named):
            return None
        self._had_dropped |= dict.fromkeys(accusers, self._step)
        return named, why

    def _is_spare(self, member: Member) -> bool:
        """Can the run go on without it?"""
        mine = [s.stage for s in self._chain.seats_of(member) if s.role != "learner"]
        return member != self._me and all(any(s.member != member for s in self._chain.holders(stage)) for stage in mine)

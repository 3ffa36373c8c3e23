"""Who on the roster is lost. Suspicion is cheap and anybody's; a loss is declared by the coordinator and needs two opinions."""

from __future__ import annotations

from dataclasses import replace

from protocol.blame import Blame
from protocol.chain import Chain
from protocol.ids import Member, PeerId
from protocol.ledger import Ledger
from protocol.messages import Stalled
from protocol.records import Seating
from protocol.view import View

OPINION_LAPSES = 2.0


class Losses:
    """Collects opinions until the coordinator takes the lost members off the roster."""

    def __init__(self, me: Member, chain: Chain, view: View, lapse_s: float) -> None:
        self._me, self._chain, self._view = me, chain, view
        self._opinion_s = OPINION_LAPSES * lapse_s
        self._lost: dict[Member, str] = {}
        self._opinions: dict[Member, dict[PeerId, float]] = {}
        self._probed: dict[Member, float] = {}
        self._blame = Blame(chain, me)

    def __bool__(self) -> bool:
        """Is somebody who is still on the roster lost?"""
        return any(self._is_seated(member) for member in self._lost)

    def matter(self, ledger: Ledger | None) -> bool:
        """Must the roster change now? An open step does not need its learners, and goes on."""
        lost = [member for member in self._lost if self._is_seated(member)]
        return bool(lost) and (ledger is None or not ledger.by_member().keys().isdisjoint(lost))

    def lost(self) -> list[tuple[Member, str]]:
        """Who is lost and still on the roster, and why."""
        return [(member, why) for member, why in self._lost.items() if self._is_seated(member)]

    def _is_seated(self, member: Member) -> bool:
        return self._chain.member_of(member.peer) == member

    def left(self, member: Member, reason: str) -> None:
        """The member says itself that it goes."""
        self.drop(member, f"left: {reason}")

    def drop(self, member: Member, reason: str) -> None:
        """The run does without the member."""
        if self._is_seated(member):
            self._lost.setdefault(member, reason)

    def stalled(self, by: Member, message: Stalled) -> None:
        """An attempt failed; after several that failed at the same member it is done without."""
        dropped = self._blame.enter(by, message.peer, message.step, message.attempt)
        if dropped:
            self.drop(*dropped)

    def heard(self, member: Member) -> None:
        """A later incarnation speaks: the one on the roster is lost, with all that it held, and nobody else needs asking."""
        known = self._chain.member_of(member.peer)
        if known and known.incarnation < member.incarnation:
            self._lost.setdefault(known, "restarted")

    def suspect(self, by: PeerId, member: Member, now: float) -> bool:
        """A second opinion; False if it is about nobody on the roster."""
        if self._is_seated(member):
            self._opinions.setdefault(member, {})[by] = now
            return True
        return False

    def look(self, now: float) -> list[tuple[PeerId, Member]]:
        """Judge the members that lapsed here; returns whom to ask about whom. Who is off the roster may be seated again."""
        if self._lost:
            self._lost = {member: why for member, why in self._lost.items() if self._is_seated(member)}
        self._forget_old(now)
        probes, members = [], self._chain.by_peer
        for member in [members[peer] for peer in self._view.all_lapsed(members, now)]:
            if member != self._me and member not in self._lost:
                probes += self._judge(member, now)
        return probes

    def _forget_old(self, now: float) -> None:
        """Opinions that do not count any more, also of members that have left."""
        if self._opinions:
            recent = {m: {p: at for p, at in by.items() if now - at <= self._opinion_s} for m, by in self._opinions.items()}
            self._opinions = {member: by for member, by in recent.items() if by}
        if self._probed:
            self._probed = {member: at for member, at in self._probed.items() if now - at <= self._opinion_s}

    def _judge(self, member: Member, now: float) -> list[tuple[PeerId, Member]]:
        """A loss needs the lapse here and at a second node, where a third node that still lives is on the roster."""
        others = [m for m in self._chain.members() if m not in (self._me, member) and not self._view.lapsed(m.peer, now)]
        alive = {m.peer for m in others}
        opinions = self._opinions.get(member, {})
        agreed = [p for p, at in opinions.items() if p in alive and now - at <= self._opinion_s]
        if agreed or not others:
            second = f" and by {agreed[0][-8:]}" if agreed else ""
            silent = self._view.silent_s(member.peer, now)
            self._lost[member] = f"not heard for {silent:.1f} s by the coordinator{second}"
        elif now - self._probed.get(member, -1e9) > self._opinion_s:
            self._probed[member] = now
            return [(other.peer, member) for other in others[:2]]
        return []

    def take(self) -> dict[Member, str]:
        """The lost members on the roster and why; from now on they are the caller's business."""
        lost = {member: why for member, why in self._lost.items() if self._is_seated(member)}
        for member in lost:
            self._opinions.pop(member, None)
            self._probed.pop(member, None)
        self._lost = {}
        return lost


def promotions(stay: list[Seating]) -> tuple[Seating, ...]:
    """A passive replica is exact: where no active one is left, the first in roster order takes over at once."""
    covered = {s.stage for s in stay if s.role == "active"}
    first: dict[int, Seating] = {}
    for seating in stay:
        if seating.role == "passive" and seating.stage not in covered:
            first.setdefault(seating.stage, replace(seating, role="active"))
    return tuple(first.values())

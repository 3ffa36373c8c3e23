"""When the coordinator leads microbatches around a replica: a broken stream, a lapse, a loss, one that has become slow. How:
`protocol.reroute`."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.chain import Chain
from protocol.commands import Command
from protocol.ids import Member
from protocol.ledger import Ledger
from protocol.manifest import TimingSection
from protocol.messages import Stalled
from protocol.reroute import (
    ANSWER_HEARTBEATS,
    answer_misfit,
    ask_again,
    doubt,
    end_to_spare,
    exclude,
    is_seated,
    overdue,
    relieve,
    why_needed,
)
from protocol.revoking import Revoked
from protocol.view import View

SILENT_HEARTBEATS = 1.5
"""Whoever is not heard for so long may be lost, and is what an attempt waits for."""


class Detours:
    """Changes the ledger of the open attempt; `take` hands over what is to be said besides."""

    def __init__(self, me: Member, chain: Chain, view: View, timing: TimingSection) -> None:
        self._me, self._chain, self._view = me, chain, view
        self._heartbeat_s = timing.heartbeat_s
        self._silence_s = timing.lapse_s + ANSWER_HEARTBEATS * timing.heartbeat_s
        self._out: list[Command] = []

    def take(self) -> list[Command]:
        """Commands made since the last call."""
        out, self._out = self._out, []
        return out

    def on_stalled(self, ledger: Ledger, by: Member, message: Stalled, now: float) -> bool:
        """`by` cannot go on. True if the attempt can: it cannot reach a peer, or waits for one that is silent or in doubt (and
        says it again if it still waits later)."""
        named = self._chain.member_of(message.peer)
        if message.summing >= 0:
            return self._doubt_sum(ledger, by, named, message, now)
        if message.unsent:
            return self._doubt_link(ledger, by, named, f"cannot reach {message.peer[-8:]}: {message.reason}", now)
        return not message.peer and (bool(ledger.doubts) or self._somebody_is_silent(ledger, now))

    def _doubt_sum(self, ledger: Ledger, by: Member, named: Member | None, message: Stalled, now: float) -> bool:
        """`by` waits for the other one's part in a sum. If that one lives the sum has failed; else it is done without it."""
        if message.sum_number != ledger.sum_numbers.get(message.summing, 0) or named is None or not is_seated(ledger, named):
            return True
        if named in ledger.doubts:
            ledger.doubts[named].about = by, message
        elif why_needed(ledger, named):
            return False
        else:
            reason, answer_s = f"{by.peer[-8:]} says: {message.reason}", ANSWER_HEARTBEATS * self._heartbeat_s
            self._out += doubt(ledger, named, reason, now, answer_s, (by, message))
        return True

    def on_suspect(self, ledger: Ledger, by: Member, member: Member, now: float) -> None:
        """`by` does not hear the member. It matters where one is next to the other on a microbatch's way."""
        if member.peer in ledger.plan.neighbours(by.peer):
            self._doubt_link(ledger, by, member, f"does not hear {member.peer[-8:]}", now)

    def _doubt_link(self, ledger: Ledger, by: Member, named: Member | None, reason: str, now: float) -> bool:
        """Either end of the link may be at fault: one that the attempt can do without is asked what it has. False if there is
        none."""
        ends = {by.peer, named.peer if named else ""}
        if by in ledger.doubts or named in ledger.doubts or ends & ledger.without.keys():
            return True
        end = end_to_spare(ledger, (named, by))
        if end:
            self._out += doubt(ledger, end, f"{by.peer[-8:]} {reason}", now, ANSWER_HEARTBEATS * self._heartbeat_s)
        return end is not None

    def _somebody_is_silent(self, ledger: Ledger, now: float) -> bool:
        least_s = SILENT_HEARTBEATS * self._heartbeat_s
        silent = [m for m in self._chain.members() if m != self._me and self._view.silent_s(m.peer, now) > least_s]
        return any(is_seated(ledger, member) for member in silent)

    def on_slow(self, ledger: Ledger, member: Member, reason: str, now: float) -> str:
        """The member has become slow: others get its rest. A sentence if that takes another attempt. It has longer to answer
        than one that cannot be reached, for it was heard."""
        if member in ledger.doubts or member.peer in ledger.without:
            return ""
        if why := why_needed(ledger, member):
            return f"{reason}; {why}"
        self._out += doubt(ledger, member, reason, now, self._silence_s)
        return ""

    def on_revoked(self, ledger: Ledger, member: Member, message: Revoked) -> tuple[Member, Stalled] | None:
        """It lives, and says what it has. Returns who waits in vain for its part of a sum, and how it said so."""
        asked = ledger.doubts.get(member)
        if asked and asked.about:
            return asked.about
        if not answer_misfit(ledger, member, message):
            self._out += relieve(ledger, member, message)
        return None

    def look(self, ledger: Ledger, now: float) -> str:
        """Time has passed. Who does not answer is excluded, and who is silent for long; a sentence if an answer is needed and
        does not come."""
        self._out += ask_again(ledger, self._heartbeat_s, now)
        for member, reason in overdue(ledger, now):
            why = "coordinates" if member == self._me else why_needed(ledger, member)
            if why:
                return f"{reason}; peer {member.peer[-8:]} does not say what it has, and {why}"
            self._out += exclude(ledger, member, reason)
        members = self._chain.by_peer
        for member in [members[peer] for peer in self._view.silent_among(members, self._silence_s, now)]:
            silent_s = self._view.silent_s(member.peer, now)
            if member != self._me and is_seated(ledger, member) and not why_needed(ledger, member):
                self._out += exclude(ledger, member, f"not heard for {silent_s:.1f} s by the coordinator")
        return ""

    def around(self, ledger: Ledger, lost: Iterable[tuple[Member, str]]) -> bool:
        """These are lost: go on without them. False if the attempt cannot."""
        for member, reason in lost:
            if is_seated(ledger, member):
                if why_needed(ledger, member):
                    return False
                self._out += exclude(ledger, member, reason)
        return True

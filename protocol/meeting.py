"""Lineages that meet: which one survives, and how the other is given up without both being given up.

Coordinators that find each other in the directory say where they stand. Of two lineages the one that parted less often with a
loss, then with the higher (epoch, step, ballot) survives, if its coordinator hears holders of every stage. The step comes
second: who was cut off alone from a living swarm and made the rest again of what it had trains fast and learns little. One that
lacks a stage never survives another; but while it has a quorum and can make the stage again, it does not give way to one that
parted more often with a loss either, for as long as that takes: it goes on, and outranks that one soon.

The lower one offers to give itself up; only when the other has accepted does it tell its members. Who has accepted gives up
nothing for a while, and of two that offer at once only the higher ballot accepts: so they never both go.

Nobody gives a lineage up for a stranger: the other coordinator, and at least half of its voters, must have had a seat in this
one. A member that nobody leads, and that hears no lineage of its own that could go on, offers only itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from protocol.chain import Chain, is_quorum
from protocol.commands import Command, Note, SendMessage
from protocol.fork import uncovered, unmakeable
from protocol.ids import Ballot, Member, PeerId
from protocol.lineage import Meeting
from protocol.manifest import Manifest
from protocol.takeover import Takeover
from protocol.view import View

MAX_MET = 8
PATIENCE_LAPSES = 2.0
"""How long an offer stands, and how long who has accepted one gives up nothing."""


@dataclass(frozen=True, slots=True)
class Stand:
    """The ballot that a node follows or leads with."""

    ballot: Ballot
    leads: bool


class Meetings:
    """See the module. `take` hands over the commands made since the last call."""

    def __init__(self, me: Member, manifest: Manifest, chain: Chain, view: View, takeover: Takeover) -> None:
        self._me, self._chain, self._view, self._takeover = me, chain, view, takeover
        self._beat_s, self._patience_s = manifest.timing.heartbeat_s, PATIENCE_LAPSES * manifest.timing.lapse_s
        self._offered: tuple[PeerId, float] | None = None
        self._accepted_at = -1e9
        self._said_at: dict[PeerId, float] = {}
        self._lacks_since: float | None = None
        """Since when it has met others without covering every stage."""
        rules = manifest.recovery
        self._regrows_s = rules.rebuild_grace_s + rules.newcomer_wait_s + manifest.fork_after_s
        self._out: list[Command] = []

    def take(self) -> list[Command]:
        """Commands made since the last call."""
        out, self._out = self._out, []
        return out

    def begin_anew(self) -> None:
        """This node has given up its lineage."""
        self._offered, self._accepted_at, self._lacks_since = None, -1e9, None
        self._said_at.clear()

    def covers(self, ballot: Ballot, now: float) -> bool:
        """Do those that were just heard, and that follow this ballot, hold every stage?"""
        return not uncovered(self._chain, self._holding(self._here(ballot, now), now))

    def _goes_on(self, ballot: Ballot, now: float) -> bool:
        """Can they decide, and make again whatever they do not hold, and have not had their time for that yet?"""
        here, since = self._here(ballot, now), self._lacks_since
        has_time = since is not None and now - since <= self._regrows_s
        can_make = not unmakeable(self._chain, self._holding(here, now))
        return has_time and is_quorum(here, self._chain.voters) and can_make

    def _here(self, ballot: Ballot, now: float) -> set[Member]:
        news, view = self._view.news, self._view
        return {m for m in self._chain.members() if view.beats(m, now) and news[m.peer].ballot == ballot} | {self._me}

    def _holding(self, members: set[Member], now: float) -> set[Member]:
        """Those of them that have the state of their seats."""
        return {m for m in members if m == self._me or self._view.holds(m, now)}

    def look(self, rivals: Iterable[PeerId], stand: Stand, now: float) -> list[Command]:
        """These claim to coordinate: tell them where this lineage stands, or that this node has none any more."""
        alone = not stand.leads and self._takeover.has_no_hope(now)
        for peer in list(rivals)[:MAX_MET] if stand.leads or alone else ():
            if peer != self._me.peer and (stand.leads or peer in self._chain.seen):
                self._say(peer, "offers" if alone else "stands", stand, now)
        return self.take()

    def on_meeting(self, sender: Member, message: Meeting, stand: Stand, now: float) -> bool:
        """Somebody says where it stands. False: give up this lineage for the sender's, now."""
        if (message.ballot.peer != sender.peer and message.word != "offers") or message.lossy_forks < 0:
            return True
        if message.word == "offers":
            mine = self._chain.member_of(sender.peer) == sender and message.lineage == self._chain.lineage
            if not mine:  # who is on the roster is led again, and keeps its state
                self._accept(sender.peer, message, stand, now)
            return True
        if not stand.leads and not self._takeover.has_no_hope(now):
            return True
        if message.word == "accepts":
            offered, self._offered = self._offered, None
            meant = offered is not None and offered[0] == sender.peer and now - offered[1] <= self._patience_s
            return not meant or not self._trusts(sender.peer, message)
        if stand.leads:
            self._compare(sender.peer, message, stand, now)
        return True

    def _compare(self, peer: PeerId, other: Meeting, stand: Stand, now: float) -> None:
        covers = self.covers(stand.ballot, now)
        self._lacks_since = None if covers else now if self._lacks_since is None else self._lacks_since
        if other.lineage == self._chain.lineage and (covers or other.ballot < stand.ballot):
            return
        lost = self._chain.lossy_forks
        goes_on = covers or (lost < other.lossy_forks and self._goes_on(stand.ballot, now))
        mine = (goes_on, -lost, self._chain.epoch, self._chain.step, stand.ballot)
        if other.covers and mine < (True, -other.lossy_forks, other.epoch, other.step, other.ballot):
            if now - self._accepted_at > self._patience_s and self._trusts(peer, other):
                self._say(peer, "offers", stand, now)
        elif now - self._said_at.get(peer, -1e9) >= self._beat_s:
            self._say(peer, "stands", stand, now)

    def _trusts(self, peer: PeerId, other: Meeting) -> bool:
        known = [v for v in other.voters if v.peer in self._chain.seen]
        if peer in self._chain.seen and 2 * len(known) >= len(other.voters) > 0:
            return True
        self._out.append(
            Note("refused", {"peer": peer, "reason": "it leads another lineage, and was never seated in this one"})
        )
        return False

    def _accept(self, peer: PeerId, other: Meeting, stand: Stand, now: float) -> None:
        offered = self._offered is not None and now - self._offered[1] <= self._patience_s
        if stand.leads and self.covers(stand.ballot, now) and not (offered and other.ballot > stand.ballot):
            self._offered, self._accepted_at = None, now
            self._say(peer, "accepts", stand, now)

    def _say(self, peer: PeerId, word: Literal["stands", "offers", "accepts"], stand: Stand, now: float) -> None:
        self._said_at = {p: at for p, at in self._said_at.items() if now - at < self._beat_s} | {peer: now}
        if word == "offers":
            self._offered = peer, now
        covers = stand.leads and self.covers(stand.ballot, now)
        chain = self._chain
        where = (chain.lineage, chain.step, covers, chain.voters, chain.lossy_forks, chain.epoch)
        message = Meeting(word, stand.ballot, *where)
        self._out.append(SendMessage(peer, message))

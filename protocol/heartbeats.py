"""When a node says that it lives, what it says of itself then, and what it asks its coordinator for again each time."""

from __future__ import annotations

from protocol.acceptor import Acceptor
from protocol.chain import Chain
from protocol.ids import Ballot
from protocol.leader import Leader
from protocol.messages import Goodbye, Heartbeat, Wish
from protocol.node_config import NodeConfig
from protocol.outlook import Outlook
from protocol.workbench import Workbench


class Heartbeats:
    """Reads what the node knows and changes nothing of it."""

    def __init__(
        self, config: NodeConfig, chain: Chain, leader: Leader, acceptor: Acceptor, bench: Workbench, outlook: Outlook
    ) -> None:
        self._config, self._me, self._every_s = config, config.member, config.manifest.timing.heartbeat_s
        self._chain, self._leader, self._acceptor, self._bench, self._outlook = chain, leader, acceptor, bench, outlook
        self._next = 0.0
        self._told: Ballot | None = None  # of the coordinator that was last told of this node's address and memory

    def soon(self, now: float) -> None:
        """The next one is due at once: who is to hear it has changed."""
        self._next = now

    def is_due(self, now: float) -> bool:
        """Is it time for one? It is taken as sent then."""
        if now < self._next:
            return False
        self._next = now + self._every_s
        return True

    @property
    def lacks(self) -> bool:
        """Is the node on the roster with a stage whose state it does not have? It leaves as soon as it is heard, and leads
        nobody."""
        return self._bench.lacks(self._me)

    @property
    def may_lead(self) -> bool:
        """Is it on the roster, with all that it is seated for?"""
        return self._chain.is_seated(self._me) and not self.lacks

    def beat(self, leads: bool, hopes: bool) -> Heartbeat:
        """What it says now. `leads`: it coordinates, or stands for it with hope. `hopes`: it may win if it stands."""
        o, me = self._bench.open, self._me
        where = (o.step, o.attempt, o.amendment) if o else (0, 0, 0)
        ballot = max(self._leader.ballot, self._acceptor.promised, self._acceptor.floor)
        standing = self._outlook.serial(self._leader.ballot)
        aside = not (leads or (hopes and self.may_lead and me in self._chain.voters))
        return Heartbeat(me.incarnation, ballot, self._chain.head, *where, aside, standing, self.lacks)

    def asks(self, leaves: bool) -> list[Goodbye | Wish]:
        """What its coordinator is told with that: that a seat is lost; or what this node would like, and where it is reached.
        `leaves`: it wants no seat any more."""
        c, mine = self._config, self._chain.is_seated(self._me)
        if self.lacks:
            return [Goodbye(self._me, "its seat is lost")]
        if (mine and self._told == self._leader.ballot) or (not mine and leaves):
            return []
        self._told = self._leader.ballot
        kept = self._bench.custody.kept()
        return [Wish(c.member, c.wished_stage, c.name, c.address, c.memory_bytes, kept)]

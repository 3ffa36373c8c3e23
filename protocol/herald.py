"""How the run stands, told to everybody who waits for something: on each change, and again to whose heartbeats show that it did
not hear."""

from __future__ import annotations

from protocol.chain import Chain
from protocol.commands import SendMessage
from protocol.ids import Ballot, PeerId
from protocol.messages import LOST_STATE, Heartbeat, Phase, Standing
from protocol.orders import Orders

AGAIN_HEARTBEATS = 2.0
NEVER = -1e9


class Herald:
    """Members are told, and spares from their first wish on. `take` hands over what is to be sent. `serial` counts what was
    told under this ballot; a heartbeat names the newest that its sender heard."""

    def __init__(self, ballot: Ballot, chain: Chain, heartbeat_s: float, orders: Orders) -> None:
        self.phase: Phase = "waiting"
        self.sentence = "waiting for nodes"
        self.exit_code = 0
        """Not 0: the run is over, and every node ends with this code."""
        self.validation: tuple[int, float] = (-1, 0.0)
        self.serial = 1
        self._ballot, self._chain, self._orders = ballot, chain, orders
        self._again_s = AGAIN_HEARTBEATS * heartbeat_s
        self._told_at: dict[PeerId, float] = {}
        self._out: list[SendMessage] = []

    def take(self) -> list[SendMessage]:
        """Messages made since the last call."""
        out, self._out = self._out, []
        return out

    def welcome(self, peer: PeerId) -> None:
        """A spare is told with the next tick, and from then on."""
        self._told_at.setdefault(peer, NEVER)

    def forget(self, peer: PeerId) -> None:
        """The peer is gone."""
        self._told_at.pop(peer, None)

    def known(self) -> list[PeerId]:
        """Everybody who is told."""
        return list(self._told_at)

    def stand(self, phase: Phase, sentence: str, now: float) -> None:
        """The run stands so from now on; nothing changes what was the end."""
        if (phase, sentence) != (self.phase, self.sentence) and not self.exit_code:
            self.phase, self.sentence = phase, sentence
            if phase == "evaluating":
                self.serial += 1  # it is over soon, and who does not hear of it misses nothing
            else:
                self.tell_everybody(now)

    def give_up(self, sentence: str, now: float) -> None:
        """The run is over for want of state."""
        self.stand("waiting", sentence, now)
        self.exit_code = LOST_STATE
        self.tell_everybody(now)

    def tell_everybody(self, now: float) -> None:
        """Something changed."""
        self.serial += 1
        for member in self._chain.members():
            self._told_at[member.peer] = now
        said = self.standing()
        for peer in self._told_at:
            self._told_at[peer] = now
            self._out.append(SendMessage(peer, said))

    def greet(self, now: float) -> None:
        """Tell those that were welcomed."""
        for peer, at in self._told_at.items():
            if at == NEVER:
                self._told_at[peer] = now
                self.tell(peer)

    def heard(self, peer: PeerId, beat: Heartbeat, now: float) -> None:
        """It says which standing it heard. Tell it the newest if that is another one."""
        if self.misses(peer, beat.ballot, beat.standing, now):
            self._told_at[peer] = now
            self.tell(peer)

    def misses(self, peer: PeerId, ballot: Ballot, serial: int, now: float) -> bool:
        """Did what was told to the peer not arrive, if it heard this under this ballot?"""
        told_at = self._told_at.get(peer, NEVER if self._chain.member_of(peer) else now)
        return (ballot < self._ballot or serial != self.serial) and now - told_at >= self._again_s

    def tell(self, peer: PeerId) -> None:
        """Tell one peer now."""
        self._out.append(SendMessage(peer, self.standing()))

    def standing(self) -> Standing:
        """What is told."""
        step, order = self._chain.step, self._orders.latest
        validated, loss = self.validation
        said = self.phase, self.sentence
        return Standing(self._ballot, *said, step, validated, loss, self.exit_code, order, self.serial)

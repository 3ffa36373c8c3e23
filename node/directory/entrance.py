"""Entering the directory through peers that are already in it, one by one, with a reason for each that fails."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from node.directory.library import DHTID, P2PDaemonError, P2PHandlerError, PeerID, PingRequest, connect
from node.ports import UnusableError
from protocol.addresses import Multiaddress, parse_multiaddress
from protocol.ids import PeerId

CANNOT_REACH = 3
MAX_SKEW_S = 3.0
"""hivemind peers refuse each other beyond that."""
PROBE_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 10.0
ROUND_PAUSE_S = 1.0
SHOWN = 3
MAX_SAID = 256
_log = logging.getLogger(__name__)


class NoEntrance(Exception):
    """A peer did not let us in. `final`: trying again is no use. No reason: that of the last attempt still stands."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.final = final


@dataclass(slots=True)
class Attempt:
    """One address and why it has not let us in yet."""

    text: str
    address: Multiaddress | None = None
    reason: str = ""
    final: bool = False


@dataclass(slots=True)
class Entrance:
    """The way into the directory of one node. `wall` is this machine's clock."""

    own_peer: PeerId
    wall: Callable[[], float]
    patience_s: float
    answer_timeout_s: float = ANSWER_TIMEOUT_S
    attempts: list[Attempt] = field(default_factory=list)
    clock_offset_s: float | None = None
    """This machine's clock minus that of the peer it was last compared with; None before the first time."""
    _said: dict[str, str] = field(default_factory=dict)
    """Why an address did not work, when that was last said: the same once, however often it is dialled again."""

    async def enter(self, node: Any, texts: Sequence[str]) -> None:
        """Returns when one peer has let us in; at once if `texts` names none but ourselves.

        Raises `UnusableError(3)` when all are hopeless, or none let us in within `patience_s`.
        """
        self.attempts = [attempt for attempt in map(_read, texts) if not self._is_own(attempt)]
        deadline = time.monotonic() + self.patience_s
        while self.attempts:
            for attempt in self.attempts:
                if await self._try(node, attempt):
                    return
            left = deadline - time.monotonic()
            if all(attempt.final for attempt in self.attempts) or left <= 0:
                raise UnusableError(CANNOT_REACH, self._sentence())
            await asyncio.sleep(min(ROUND_PAUSE_S, left))

    async def redial(self, node: Any, texts: Sequence[str]) -> int:
        """Try each address once, in turn. How many let us in."""
        attempts = [attempt for attempt in map(_read, texts) if not self._is_own(attempt)]
        return sum([await self._try(node, attempt) for attempt in attempts])

    async def compare_clocks(self, node: Any, peer: PeerId) -> None:
        """Ask a connected peer what time it is. No answer changes nothing."""
        with suppress(TimeoutError, P2PDaemonError, P2PHandlerError, OSError, EOFError):
            async with asyncio.timeout(self.answer_timeout_s):
                await self._ask(node, PeerID.from_base58(peer))

    def _is_own(self, attempt: Attempt) -> bool:
        return attempt.address is not None and attempt.address.peer == self.own_peer

    async def _try(self, node: Any, attempt: Attempt) -> bool:
        if attempt.final or attempt.address is None:
            return False
        try:
            await self._introduce(node, attempt.address)
        except NoEntrance as error:
            if error.reason not in ("", self._said.get(attempt.text)):
                self._note(attempt.text, error.reason)
                _log.warning("cannot enter the directory by %s: %s", attempt.text, error.reason)
            attempt.reason, attempt.final = error.reason or attempt.reason, error.final
            return False
        self._said.pop(attempt.text, None)
        return True

    def _note(self, text: str, reason: str) -> None:
        self._said[text] = reason
        while len(self._said) > MAX_SAID:
            del self._said[next(iter(self._said))]

    async def _introduce(self, node: Any, address: Multiaddress) -> None:
        await _probe(address, min(PROBE_TIMEOUT_S, self.answer_timeout_s))
        peer = PeerID.from_base58(address.peer)
        try:
            async with asyncio.timeout(self.answer_timeout_s):
                await connect(node.p2p, peer, str(replace(address, peer="")))
                asked, answer, answered = await self._ask(node, peer)
        except TimeoutError:
            raise NoEntrance(f"no answer within {self.answer_timeout_s:g} s") from None
        except (P2PDaemonError, P2PHandlerError, OSError, EOFError) as error:
            raise _translated(str(error)) from None
        _check_clock(asked, answer.dht_time, answered)
        await _settle(node, peer, answer)

    async def _ask(self, node: Any, peer: Any) -> tuple[float, Any, float]:
        """The peer's answer to a ping, and this machine's time before and after it."""
        asked = self.wall()
        request = PingRequest(peer=node.protocol.node_info, validate=True)
        answer = await node.protocol.get_stub(peer).rpc_ping(request, timeout=self.answer_timeout_s)
        answered = self.wall()
        offset = (asked + answered) / 2 - answer.dht_time
        if math.isfinite(offset):
            self.clock_offset_s = offset
        return asked, answer, answered

    def _sentence(self) -> str:
        skewed = next((attempt for attempt in self.attempts if "clock" in attempt.reason), None)
        if skewed is not None:
            return f"{skewed.reason}: set it (for example `timedatectl set-ntp true`) and start again"
        tried = [f"{attempt.text or '(empty)'}: {attempt.reason}" for attempt in self.attempts[:SHOWN]]
        if len(self.attempts) > SHOWN:
            tried.append(f"and {len(self.attempts) - SHOWN} more")
        return (
            f"cannot enter the directory, no known peer lets this node in ({'; '.join(tried)}): "
            "check the network, or ask for a fresh invite (`regrow invite` on a running node)"
        )


def _read(text: str) -> Attempt:
    text = text.strip()
    try:
        address = parse_multiaddress(text)
    except ValueError as error:
        return Attempt(text, None, str(error), final=True)
    if not address.peer:
        return Attempt(text, None, "it has no /p2p/PEER at its end", final=True)
    if address.port == 0:
        return Attempt(text, None, "port 0 cannot be dialled", final=True)
    return Attempt(text, address)


async def _probe(address: Multiaddress, timeout_s: float) -> None:
    """p2pd stops trying for a growing while after a refused dial, and hardly says why: ask the system first."""
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except TimeoutError:
        raise NoEntrance(f"no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise NoEntrance(_in_words(error)) from None
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def _in_words(error: OSError) -> str:
    words = error.strerror or str(error)
    if isinstance(error, ConnectionRefusedError):
        return "connection refused, nobody listens there"
    # asyncio says "Connect call failed (...)" with a number, uvloop the system's words
    return words if not error.errno or "Connect call" not in words else f"cannot be reached (error {error.errno})"


def _translated(message: str) -> NoEntrance:
    """p2pd's message in our words."""
    if "peer id mismatch" in message:
        actual = message.rpartition("matches ")[2].split()[0]
        return NoEntrance(f"another peer answers there ({actual})", final=True)
    if "protocols not supported" in message or "failed to negotiate" in message:
        return NoEntrance("what answers there is no directory peer")
    if "dial backoff" in message:
        return NoEntrance("")
    return NoEntrance(" ".join(message.removeprefix("Connect failed. msg=").split())[:200] or "the connection broke")


def _check_clock(asked: float, theirs: float, answered: float) -> None:
    offset, uncertainty = theirs - (asked + answered) / 2, (answered - asked) / 2
    if abs(offset) - uncertainty > MAX_SKEW_S:
        side = "behind" if offset > 0 else "ahead of"
        raise NoEntrance(
            f"this machine's clock is {abs(offset):.1f} s {side} that of the swarm (at most {MAX_SKEW_S:g} s is allowed)",
            final=True,
        )


async def _settle(node: Any, peer: Any, answer: Any) -> None:
    """Put the peer into the routing table and find our neighbours through it."""
    if len(answer.peer.node_id) != DHTID.HASH_NBYTES:
        raise NoEntrance("it does not store records")
    await node.protocol.update_routing_table(DHTID.from_bytes(answer.peer.node_id), peer, responded=True)
    with suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await node.find_nearest_nodes([node.node_id])

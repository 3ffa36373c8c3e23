"""Tickets of the organiser, for runs by invitation: their text form, what is signed, and when one does not admit a peer.

A ticket names a run, an expiry, a serial, and whom it is for: a peer, or the *bearer*, whoever has the private key that
belongs to `bearer`. A bearer's ticket may be used by any number of peers until it expires. Leases are public, so a lease never
carries the private key but a *proof*: the bearer's key has signed the peer that shows the ticket. What is read in the
directory so helps nobody else.

    regrow-ticket1:RUN.PEER.BEARER.SERIAL.EXPIRES.SIGNATURE.SECRET.CHECKSUM     what a person gets
    regrow-pass1:RUN.PEER.BEARER.SERIAL.EXPIRES.SIGNATURE.PROOF.CHECKSUM        what a lease carries

Keys, signatures and checksum (crc32) in hex; either PEER or BEARER is empty, and SECRET and PROOF where there is no bearer.
Whether a key made a signature is asked of the `Verify` that the caller brings.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from protocol.addresses import is_peer_id
from protocol.ids import PeerId

MAX_CHARS = 640
MAX_INTEGER = 2**53
Kind = Literal["ticket", "pass"]
Verify = Callable[[str, bytes, str], bool]
"""(public key, signed bytes, signature) -> whether the key made the signature; False for anything malformed."""
_ASK = "copy it again or ask the run's organiser for another"
_RUN = re.compile(r"[a-z0-9][a-z0-9-]{0,30}-[0-9a-f]{16}")
_KEY, _SIGNATURE = re.compile(r"([0-9a-f]{64})?"), re.compile(r"[0-9a-f]{128}")
_NUMBER = re.compile(r"[1-9][0-9]{0,15}")
_EXTRA = {"ticket": _KEY, "pass": re.compile(r"([0-9a-f]{128})?")}


@dataclass(frozen=True, slots=True)
class Ticket:
    """What the organiser signs, and the signature. Either `peer` or `bearer` (a public key) is empty."""

    run_id: str
    peer: PeerId
    bearer: str
    serial: int
    """Tells tickets apart; no two of a run have the same."""
    expires: int
    """Seconds since the epoch."""
    signature: str = ""

    def signed_bytes(self) -> bytes:
        """What the organiser signs: nothing of another kind, or of another run, passes as this ticket."""
        said = [self.run_id, self.peer, self.bearer, self.serial, self.expires]
        return b"regrow ticket\n" + json.dumps(said, separators=(",", ":")).encode()


def proof_bytes(run_id: str, peer: PeerId) -> bytes:
    """What the bearer's key signs for the peer that shows the ticket."""
    return b"regrow bearer\n" + json.dumps([run_id, peer], separators=(",", ":")).encode()


def encode(kind: Kind, ticket: Ticket, extra: str = "") -> str:
    """The text of a ticket with the bearer's secret, or of a pass with the bearer's proof."""
    fields = (ticket.run_id, ticket.peer, ticket.bearer, ticket.serial, ticket.expires, ticket.signature, extra)
    body = ".".join(map(str, fields))
    text = f"regrow-{kind}1:{body}.{zlib.crc32(body.encode()):08x}"
    assert decode(kind, text) == (ticket, extra), f"a {kind} that nobody would read: {text}"
    return text


def decode(kind: Kind, text: str) -> tuple[Ticket, str]:
    """The ticket in a text, and the secret or proof. Blanks and line breaks of a person's ticket are ignored.

    Raises `ValueError` with one line; the text may be a stranger's.
    """
    prefix, text = f"regrow-{kind}1:", text[: 2 * MAX_CHARS] if kind == "pass" else "".join(text.split())
    if not text.startswith(prefix):
        raise ValueError(f"this is no {kind}: it does not start with {prefix!r} but with {text[:16]!r}")
    if len(text) > MAX_CHARS:
        raise ValueError(f"a {kind} of more than {MAX_CHARS} characters: {_ASK}")
    body, _, checksum = text.removeprefix(prefix).rpartition(".")
    fields = body.split(".")
    if len(fields) != 7 or checksum != f"{zlib.crc32(body.encode()):08x}":
        raise ValueError(f"the {kind} is mistyped or truncated: its checksum does not match; {_ASK}")
    return _checked(kind, fields)


def _checked(kind: Kind, fields: list[str]) -> tuple[Ticket, str]:
    run_id, peer, bearer, serial, expires, signature, extra = fields
    good = (
        _RUN.fullmatch(run_id)
        and (is_peer_id(peer) if peer else True)
        and _KEY.fullmatch(bearer)
        and bool(peer) != bool(bearer)
        and _NUMBER.fullmatch(serial)
        and _NUMBER.fullmatch(expires)
        and _SIGNATURE.fullmatch(signature)
        and _EXTRA[kind].fullmatch(extra)
        and bool(extra) == bool(bearer)
    )
    if not good or max(int(serial), int(expires)) > MAX_INTEGER:
        raise ValueError(f"the {kind}'s contents are wrong: {_ASK}")
    return Ticket(run_id, peer, bearer, int(serial), int(expires), signature), extra


def refusal(ticket: Ticket, run_id: str, organiser: str, peer: PeerId, verify: Verify) -> str:
    """Why `ticket` does not admit `peer` to the run of this organiser, whatever the time; '' if it does.

    For a bearer's ticket the proof must be looked at, too (`proof_refusal`), and for each the expiry (`is_over`).
    """
    if ticket.run_id != run_id:
        return f"is for run {ticket.run_id}, not for {run_id}"
    if ticket.peer not in ("", peer):
        return f"is for peer {ticket.peer}, not for {peer}"
    if not verify(organiser, ticket.signed_bytes(), ticket.signature):
        return "is not signed by the run's organiser"
    return ""


def proof_refusal(ticket: Ticket, proof: str, peer: PeerId, verify: Verify) -> str:
    """Why whoever shows the ticket is not its bearer; '' if it is, or if the ticket is a peer's own."""
    if ticket.bearer and not verify(ticket.bearer, proof_bytes(ticket.run_id, peer), proof):
        return f"is not that of peer {peer}: its bearer has not signed for it"
    return ""


def is_over(expires: float, now: float) -> bool:
    """Is a ticket with this expiry of no more use? Both in seconds since the epoch."""
    return expires <= now

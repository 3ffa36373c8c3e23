"""Runs by invitation: what this node's own lease shows, and whether another's lease shows a good ticket.

A ticket is judged wherever a lease is read, by every node for itself: there is no list of the invited and nobody to be asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from node.keys import OrganiserKey, proof_of, sign_ticket, verify
from node.ports import Clock, Lease, UnusableError
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.tickets import decode, encode, is_over, proof_refusal, refusal

BY_INVITATION = "this run is by invitation"
MAX_REMEMBERED = 4096
DAY_S = 24 * 3600
OWN_DAYS = 3650
"""How long the ticket is good that the organiser's node writes for itself at each start."""

Judge = Callable[[Lease], str]
"""Why the peer of a lease may not take part; '' if it may."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What this node's leases carry. `flaw`: the sentence for its user in case the run is by invitation; '' = a good ticket."""

    text: str = ""
    flaw: str = ""


def everybody(_lease: Lease) -> str:
    """In an open run nobody looks at tickets."""
    return ""


def judge_of(manifest: Manifest, clock: Clock) -> Judge:
    """How this run's nodes judge a lease."""
    if manifest.admission == "open":
        return everybody

    @lru_cache(MAX_REMEMBERED)
    def judged(text: str, peer: PeerId) -> tuple[int, str]:
        try:
            ticket, proof = decode("pass", text)
        except ValueError:
            return 0, "cannot be read"
        why = refusal(ticket, manifest.run_id, manifest.organiser, peer, verify) or proof_refusal(ticket, proof, peer, verify)
        return ticket.expires, why

    def judge(lease: Lease) -> str:
        if not lease.ticket:
            return f"{BY_INVITATION}; ask its organiser for a ticket"
        expires, why = judged(lease.ticket, lease.peer)
        why = why or ("has expired" if is_over(expires, clock.wall()) else "")
        return f"{BY_INVITATION} and your ticket {why}; ask its organiser for another" if why else ""

    return judge


def shown(text: str, run_id: str, organiser: str, peer: PeerId, now: float) -> Shown:
    """What a person's ticket ('' = none) lets this node show. Raises `UnusableError(2)` for one that cannot be read.

    One that is of no use for this run is not shown: in an open run nobody asks for it. `now`: seconds since the epoch.
    """
    for_peer = f"for peer {peer} (`regrow ticket --peer {peer}`)"
    if not text:
        return Shown("", f"{BY_INVITATION}; ask its organiser for a ticket {for_peer}")
    try:
        ticket, secret = decode("ticket", text)
    except ValueError as error:
        raise UnusableError(2, f"--ticket: {error}") from None
    why = refusal(ticket, run_id, organiser, peer, verify) or ("has expired" if is_over(ticket.expires, now) else "")
    if why:
        return Shown("", f"{BY_INVITATION} and your ticket {why}; ask its organiser for another {for_peer}")
    return Shown(encode("pass", ticket, proof_of(secret, run_id, peer) if secret else ""))


def shown_by_founder(text: str, manifest: Manifest, key: OrganiserKey | None, peer: PeerId, now: float) -> Shown:
    """What the node that starts a run shows: with the organiser's key at hand it writes its own ticket.

    Raises `UnusableError(2)` where it could not take part in its own run.
    """
    if manifest.admission == "open":
        return Shown()
    if not text and key is not None and key.public == manifest.organiser:
        text = sign_ticket(key, manifest.run_id, peer, int(now * 1000), int(now) + OWN_DAYS * DAY_S)
    found = shown(text, manifest.run_id, manifest.organiser, peer, now)
    if found.flaw:
        raise UnusableError(2, f"the organiser's key is not in this state directory: {found.flaw}, and give it with --ticket")
    return found

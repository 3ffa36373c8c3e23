"""Taking work from a replica that lives and that somebody cannot reach (`Revoke`, and its answer), and leading microbatches
around it, or around one that is lost (`Detour`)."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import Ballot, PeerId


@dataclass(frozen=True, slots=True)
class Revoke:
    """To a replica: accumulate nothing in this attempt that you have not begun to, and tell me what you have."""

    ballot: Ballot
    step: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Counted:
    """What is, or will be without anybody's doing, in the gradient of the sender's seat."""

    stage: int
    microbatches: str


@dataclass(frozen=True, slots=True)
class Detour:
    """These microbatches pass the stage at this peer now. Told to it, and to those before and after it on their way: what they
    had sent to the peer before, they send to this one."""

    stage: int
    peer: PeerId
    amendment: int
    """With which it began."""
    whole: bool
    """It computes all of them; else only those of which nothing has come back yet: their owner, which cannot be reached, has
    accumulated the others."""
    microbatches: str


@dataclass(frozen=True, slots=True)
class Revoked:
    """These of my microbatches I have accumulated; the others I shall not."""

    ballot: Ballot
    step: int
    attempt: int
    amendment: int
    """Of the attempt, the newest that I know: what I was given since is not spoken of."""
    seats: tuple[Counted, ...]

"""Taking work from a replica that lives and that somebody cannot reach (`Revoke`, and its answer) or that is lost (`Again`)."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import Ballot


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
class Again:
    """Who had accumulated the microbatch at these stages is lost to the attempt: it is run again even if it came back."""

    microbatch: int
    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Revoked:
    """These of my microbatches I have accumulated; the others I shall not."""

    ballot: Ballot
    step: int
    attempt: int
    amendment: int
    """Of the attempt, the newest that I know: what I was given since is not spoken of."""
    seats: tuple[Counted, ...]

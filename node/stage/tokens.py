"""Where stage 0 gets its tokens from. Knows nothing about torch."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]
"""[microbatch_samples, context_tokens + 1]: each token but the first of a row is predicted from those before it."""


class TokenSource(Protocol):
    """Token ids as a pure function of the position. Called on the compute thread, one call at a time, and only for stage 0.

    Errors: `node.ports.UnusableError` for data that this machine's user must change, `PeerError` for a peer's.
    """

    def microbatch(self, step: int, microbatch: int) -> Tokens:
        """Training tokens of a microbatch (0-based) of a step (1-based)."""

    def validation(self, microbatch: int) -> Tokens:
        """Held-out tokens of a microbatch (0-based)."""

"""How often strangers may look: each once in a while, and all of them together so many times a second. Pure."""

from __future__ import annotations

PAUSE_S = 0.5
"""Between two looks of one caller."""
MAX_PER_SECOND = 16.0
"""Of all callers: a key costs a stranger nothing, so that the first limit alone is none."""
BURST = 32.0
MAX_KNOWN = 1024


class Turnstile:
    """`refusal` is called for each look; all times are seconds of one clock that does not go back."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._left, self._at = BURST, 0.0

    def refusal(self, caller: str, now: float) -> str:
        """Why this caller must come back later; '' where it may look, which is counted."""
        if now - self._last.get(caller, float("-inf")) < PAUSE_S:
            return f"once in {PAUSE_S:g} s is enough; come back later"
        self._left = min(BURST, self._left + (now - self._at) * MAX_PER_SECOND)
        self._at = now
        if self._left < 1.0:
            return "too many look at this node; come back later"
        self._left -= 1.0
        self._last.pop(caller, None)
        self._last[caller] = now
        if len(self._last) > MAX_KNOWN:
            del self._last[next(iter(self._last))]
        return ""

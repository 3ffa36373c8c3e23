"""`--retry`: a node whose run cannot be reached, or that broke, is started again after a pause, as the next incarnation."""

from __future__ import annotations

import logging
from collections.abc import Callable

from node.ports import PeerError, UnusableError

FIRST_PAUSE_S, LAST_PAUSE_S = 5.0, 300.0
PASSING = (3, 6)
"""Exit codes of what may be over the next time: the run cannot be reached, the device does not answer."""
log = logging.getLogger(__name__)


def next_pause(last_s: float, lived_s: float) -> float:
    """Seconds to wait: doubled with each failure, from the start again after a life longer than the longest pause."""
    return FIRST_PAUSE_S if last_s == 0.0 or lived_s > LAST_PAUSE_S else min(2 * last_s, LAST_PAUSE_S)


def run_again(
    live: Callable[[], int], sleep: Callable[[float], None], now: Callable[[], float], say: Callable[[str], None]
) -> int:
    """The exit code of the first life that ends in order; what is the user's to mend is raised. Signals end it at any time."""
    pause_s = 0.0
    while True:
        began = now()
        try:
            return live()
        except UnusableError as error:
            if error.code not in PASSING:
                raise
            why = str(error)
        except PeerError as error:
            why = str(error)
        except Exception as error:  # the outermost edge: whatever broke it, the user asked for another life
            log.exception("the node broke")
            why = f"the node broke ({type(error).__name__}: {error})"
        pause_s = next_pause(pause_s, now() - began)
        say(f"{why}; starting again in {pause_s:g} s (Ctrl-C ends it)")
        sleep(pause_s)

"""`python -m node.lab.worker`: does the jobs that come on stdin, one JSON line each, and answers each with one on stdout.

It ends with whoever started it: nothing comes any more.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys

from node.lab.forks import Hand
from node.ports import UnusableError


def main() -> None:
    """A job that fails for a reason that the user must change is answered with that reason."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who gives the jobs.
    hand = Hand()
    with contextlib.suppress(BrokenPipeError):
        for line in sys.stdin:
            try:
                answer = hand.do(json.loads(line))
            except UnusableError as error:
                answer = {"unusable": str(error), "code": error.code}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

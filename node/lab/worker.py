"""`python -m node.lab.worker`: does the jobs that come on stdin, one JSON line each, and answers each with one on stdout.

It ends with whoever started it: nothing comes any more.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys

from node.lab.forks import Hand, Plain
from node.lab.grid.hand import do_job
from node.ports import UnusableError


def say(answer: Plain) -> None:
    """One line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def do(hand: Hand, job: Plain) -> Plain:
    """Runs of the grid share nothing; forks of one run do."""
    return do_job(job, say) if job["what"] == "grid" else hand.do(job)


def main() -> None:
    """A job that fails for a reason that the user must change is answered with that reason."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who gives the jobs.
    hand = Hand()
    with contextlib.suppress(BrokenPipeError):
        for line in sys.stdin:
            try:
                answer = do(hand, json.loads(line))
            except UnusableError as error:
                answer = {"unusable": str(error), "code": error.code}
            say(answer)


if __name__ == "__main__":
    main()

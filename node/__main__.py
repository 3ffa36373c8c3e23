"""`python -m node`, and the `regrow` command: a process from its first to its last moment."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence


def run(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code.

    Until the command can say so itself, Ctrl-C ends the process silently: imports would end in a traceback. A node has closed
    all that it opened when its command returns; taking its modules apart would cost another second of computing.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # p2pd is no Python: gRPC need not remark on it
    from node.cli.main import main

    code = main(argv)
    if "torch" in sys.modules:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    run()

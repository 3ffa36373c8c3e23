"""`python -m node.demo.child PARENT ARG...`: the `regrow` command, killed by the kernel when process PARENT dies."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from node.__main__ import run

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """From now on this process gets SIGKILL when the thread that started it ends; exits if that happened already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    run(sys.argv[2:])

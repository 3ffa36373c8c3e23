"""`python -m tests.tools.saboteur KIND STEP PARENT ARG...`: a `regrow` node that is honest up to a step and then is not.

Its key, lease, stream and every message are in order; only the numbers are wrong. Kinds are the names of `SABOTAGE`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from node.demo.child import die_with_parent
from node.demo.process import STDERR_FILE, STDOUT_FILE, NodeProcess


def start(kind: str, step: int, name: str, args: Sequence[str], state_dir: Path) -> NodeProcess:
    """As `NodeProcess.start`."""
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    own = ["--json", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--state-dir", str(state_dir)]
    command = [sys.executable, "-m", "tests.tools.saboteur", kind, str(step), str(os.getpid()), *args, *own]
    with (state_dir / STDOUT_FILE).open("wb") as out, (state_dir / STDERR_FILE).open("wb") as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
    return NodeProcess(name, state_dir, process)


def _learning_rate(step: int) -> None:
    """Updates with a learning rate of 1e30."""
    from node.stage.executor import TorchExecutor

    honest = TorchExecutor._apply

    def apply(self: Any, seat: Any, asked: Any) -> Any:
        return honest(self, seat, replace(asked, learning_rate=1e30) if seat.optimizer_age + 1 >= step else asked)

    TorchExecutor._apply = apply  # type: ignore[method-assign]


def _flipped_weights(step: int) -> None:
    """Bytes of the weights become 0x7F after an update: 3.4e38."""
    from node.stage.executor import TorchExecutor

    honest = TorchExecutor._apply

    def apply(self: Any, seat: Any, asked: Any) -> Any:
        honest(self, seat, asked)
        if seat.optimizer_age >= step:
            seat.weights[:8] = 3.39e38
            seat.updated()
        return seat.info()

    TorchExecutor._apply = apply  # type: ignore[method-assign]


def _payloads(value: float) -> Callable[[int], None]:
    """Activations, gradients of them and parts of sums are all this value."""

    def sabotage(step: int) -> None:
        from node.stage import executor, passes

        honest_encode, honest_run = passes.encode, passes.Passes.run
        at = [0]

        def run(self: Any, seat: Any, work: Any, payload: Any) -> Any:
            at[0] = work.step
            return honest_run(self, seat, work, payload)

        def encode(tensor: Any, codec: str) -> Any:
            return honest_encode(tensor if at[0] < step else tensor.new_full(tensor.shape, value), codec)

        passes.Passes.run = run  # type: ignore[method-assign]
        passes.encode = executor.encode = encode

    return sabotage


def _hang(step: int) -> None:
    """Its device never ends a computation of that step; everything else answers."""
    import threading

    from node.stage.passes import Passes

    honest = Passes.run

    def run(self: Any, seat: Any, work: Any, payload: Any) -> Any:
        if work.step >= step:
            threading.Event().wait()
        return honest(self, seat, work, payload)

    Passes.run = run  # type: ignore[method-assign]


SABOTAGE: dict[str, Callable[[int], None]] = {
    "learning_rate": _learning_rate,
    "flipped_weights": _flipped_weights,
    "hang": _hang,
    "nan": _payloads(float("nan")),
    "huge": _payloads(1e38),
}

if __name__ == "__main__":
    kind, step, parent = sys.argv[1:4]
    die_with_parent(int(parent))
    SABOTAGE[kind](int(step))
    from node.__main__ import run as regrow

    regrow(sys.argv[4:])

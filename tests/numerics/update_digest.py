"""What optimizer updates leave behind, as digests: run as a subprocess, once per CPU capability.

Prints one line per optimizer and number of threads: what torch says of the CPU, optimizer, threads, digest.
"""

from __future__ import annotations

import numpy as np
import torch

from node.stage.digest import state_digest
from node.stage.update import Vectors, decay_runs, scalars, update
from protocol.manifest import OptimizerSection

SIZE = 400_000


def vectors() -> Vectors:
    """Gradients of all magnitudes, zeros and subnormal numbers among them."""
    random = np.random.Generator(np.random.Philox(key=5))
    exponents = random.integers(-149, 20, SIZE)
    gradient = np.ldexp(random.integers(-(1 << 24), 1 << 24, SIZE) / (1 << 24), exponents).astype(np.float32)
    gradient[::97] = 0.0
    weights = (random.integers(-(1 << 24), 1 << 24, SIZE) / (1 << 28)).astype(np.float32)
    return Vectors(torch.tensor(weights), torch.zeros(SIZE), torch.zeros(SIZE), torch.tensor(gradient))


def digest(optimizer: OptimizerSection) -> str:
    """Three updates with gradients that differ; blocks with and without weight decay, of odd sizes."""
    x = vectors()
    runs = decay_runs([("a", (SIZE // 2 - 1, 1)), ("b", (3,)), ("c", (SIZE - SIZE // 2 - 2, 1))], 0.1)
    for age in (1, 2, 3):
        update(optimizer, x, runs, scalars(optimizer, 0.37 / age, 1.7e-3, age))
        x.gradient.copy_(x.gradient.flip(0))
    return state_digest((x.weights, x.exp_avg, x.exp_avg_sq), 3)


def main() -> None:
    """Both optimizers with one thread and with two."""
    capability = torch.backends.cpu.get_cpu_capability().lower()
    for kind in ("adamw", "sgd"):
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            assert torch.get_num_threads() == num_threads
            optimizer = OptimizerSection(kind=kind, learning_rate=1.0, weight_decay=0.1)
            print(capability.replace(" ", "-"), kind, num_threads, digest(optimizer))


if __name__ == "__main__":
    main()

"""Sizes as people write them, the upload's token bucket, the allowance of bytes, and what a machine has left."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from node.limits import Allowance, Upload, parse_size
from node.machine import available_memory, free_disk
from node.sim.loop import VirtualClock, run_virtual
from tests.tools.clock import StepClock


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("4GB", 4 * 10**9), ("512MiB", 512 << 20), (" 1.5 g ", 1_500_000_000), ("2tib", 2 << 40), ("10k", 10_000)],
)
def test_sizes(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "4", "GB", "-1GB", "1e9GB", "4 GB!", "4PB", "٤GB", "inf"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="write it as 4GB or 512MiB"):
        parse_size(text)


def test_never_above_the_cap_by_more_than_a_burst(seed: int) -> None:
    """Several streams at once, with pauses; at every moment, and from every moment on."""
    sent: list[tuple[float, int]] = []

    async def senders() -> Upload:
        clock = VirtualClock()
        upload = Upload(clock, mbit_per_s=8.0)

        async def stream(rng: Random) -> None:
            for _ in range(50):
                await clock.sleep(rng.choice([0.0, 0.0, 0.01, 3.0]))
                size = rng.randrange(1, upload.chunk_bytes + 1)
                await upload.pace(size)
                sent.append((clock.monotonic(), size))

        async with asyncio.TaskGroup() as group:
            for index in range(5):
                group.create_task(stream(Random(seed + index)))
        return upload

    upload = run_virtual(senders())
    assert upload.bytes_per_s == 1e6
    for first in range(0, len(sent), 7):
        for last in range(first, len(sent), 5):
            num_bytes = sum(size for _, size in sent[first : last + 1])
            seconds = sent[last][0] - sent[first][0]
            # The first of them may have been waited for before the interval.
            assert num_bytes <= upload.bytes_per_s * seconds + upload.burst_bytes + upload.chunk_bytes


def test_the_cap_is_used() -> None:
    async def send() -> float:
        clock = VirtualClock()
        upload, began = Upload(clock, mbit_per_s=80.0), clock.monotonic()
        for _ in range(100):
            await upload.pace(1_000_000)
        return clock.monotonic() - began

    assert 9.5 < run_virtual(send()) <= 10.0


def test_chunks_are_small_where_the_line_is_slow() -> None:
    assert Upload(StepClock(), 1.0).chunk_bytes == 31_248
    assert Upload(StepClock(), 1000.0).chunk_bytes > 4 << 20


def test_an_allowance_is_told_once_when_it_is_spent() -> None:
    told: list[str] = []
    allowance = Allowance(3_000, told.append)
    allowance.note("in", 1_000)
    allowance.note("out", 1_999)
    assert told == []
    for _ in range(3):
        allowance.note("out", 1)
    assert told == ["the limit of 3.0 kB (--max-gb) is reached"]
    assert (allowance.received, allowance.sent) == (1_000, 2_002)


def test_without_a_limit_bytes_are_only_counted() -> None:
    allowance = Allowance(0, lambda _: pytest.fail("told"))
    allowance.note("in", 1 << 60)


def test_memory_by_the_kernel_and_by_the_cgroup(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    assert available_memory(proc, cgroup) == 0
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemFree: 1 kB\nMemAvailable: 8000 kB\n")
    assert available_memory(proc, cgroup) == 8000 * 1024
    (proc / "self/cgroup").write_text("0::/a/b\n")
    (cgroup / "a/b").mkdir(parents=True)
    for name, limit, used in (("a/b", "max", "5"), ("a", "3000", "1000")):
        (cgroup / name / "memory.max").write_text(f"{limit}\n")
        (cgroup / name / "memory.current").write_text(f"{used}\n")
    assert available_memory(proc, cgroup) == 2000
    (cgroup / "a/memory.current").write_text("4000\n")
    assert available_memory(proc, cgroup) == 0


def test_this_machine_has_memory_and_disk(tmp_path: Path) -> None:
    assert available_memory() > 1 << 20
    assert free_disk(tmp_path / "not/there/yet") > 0

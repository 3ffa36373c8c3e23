"""What every test gets: one seed that is printed, no skips under CI, and no process left behind.

Environment read here and nowhere else in the tests:
CI=true                a skipped test is a failed one
REGROW_TEST_SEED=N     the seed of an earlier session, to replay it
"""

from __future__ import annotations

import os
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest
from xdist.scheduler import LoadScopeScheduling

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")
SEED_VARIABLE = "REGROW_TEST_SEED"
DEFAULT_SEED = 1
"""The same in every run, so that a run says something about the change and not about the draw; others are for exploring."""
TEST_ID_VARIABLE = "REGROW_TEST_ID"
ORPHAN_GRACE_S = 3.0
MOST_SEEDS = "tests/sim/test_mixed.py::"
STARTS_PROCESSES = ("tests/integration/", "tests/chaos/")
SEED = pytest.StashKey[int]()
TALLY = pytest.StashKey[Counter[str]]()


# --- one seed


def pytest_configure(config: pytest.Config) -> None:
    told = getattr(config, "workerinput", {}).get("seed")
    seed = int(told or os.environ.get(SEED_VARIABLE) or DEFAULT_SEED)
    config.stash[SEED], config.stash[TALLY] = seed, Counter()
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = seed
    hypothesis.settings.register_profile("regrow", deadline=None, database=None)
    hypothesis.settings.load_profile("regrow")
    _clean_environment()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A worker process is about to be started; its environment is cleaned already."""
    node.workerinput["seed"] = node.config.stash[SEED]


def _clean_environment() -> None:
    for name in [name for name in os.environ if name.startswith("REGROW_")]:
        del os.environ[name]
    # Idle OpenMP threads of one process starve the other processes of a local swarm.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.stash[SEED]} (replay with {SEED_VARIABLE}={config.stash[SEED]})"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A number that is this test's own, the same again under the same session seed."""
    return random.Random(f"{request.config.stash[SEED]} {request.node.nodeid}").randrange(2**31)


# --- counts of the simulated seeds, told at the end of the session; those of several worker processes together


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Counter[str]:
    """Add to it what should be told."""
    return pytestconfig.stash[TALLY]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["tally"] = dict(session.config.stash[TALLY])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker process has ended."""
    node.config.stash[TALLY].update(getattr(node, "workeroutput", {}).get("tally", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = config.stash[TALLY]
    if counts:
        told = ", ".join(f"{name} {counts[name]}" for name in sorted(counts))
        terminalreporter.write_line(f"simulated swarms: {told}")


# --- field cases (docs/field-cases.md): once each, in `make field` as often as they are worth trying


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full-counts", action="store_true", help="go through field cases as often as their marker says")


def times_of(item: pytest.Item) -> int:
    """How often the test has to go through its case."""
    marker = item.get_closest_marker("field")
    return int(marker.args[0]) if marker and item.config.option.full_counts else 1


def _give_time(item: pytest.Item) -> None:
    """Who goes through his case many times may take as many times as long."""
    limit, times = item.get_closest_marker("timeout"), times_of(item)
    if limit and times > 1:
        item.add_marker(pytest.mark.timeout(times * limit.args[0]), append=False)


@pytest.fixture
def times(request: pytest.FixtureRequest) -> int:
    """For a test that is marked `field(times)`: 1, or that number under `--full-counts`."""
    return times_of(request.node)


# --- what runs where
# Two worker processes (Makefile): swarms of processes run one after the other in one of them, all else meanwhile in the other,
# file by file, and that with most seeds test by test: who is done first takes some of them. Told by the tests' names: xdist 3.8
# no longer sees its marks for groups under pytest 9.2 (pytest-xdist #1386).


def is_swarm(nodeid: str) -> bool:
    return nodeid.startswith(STARTS_PROCESSES)


class SideBySide(LoadScopeScheduling):
    """The first worker gets the swarms; `--no-loadscope-reorder` leaves them in front, where the collection has them."""

    def _split_scope(self, nodeid: str) -> str:
        if is_swarm(nodeid):
            return "swarms"
        return nodeid if nodeid.startswith(MOST_SEEDS) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SideBySide:
    return SideBySide(config, log)


def has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


def has_tun() -> bool:
    return os.geteuid() == 0 and Path("/dev/net/tun").exists()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not is_swarm(item.nodeid))
    for item in items:
        _give_time(item)
        if is_swarm(item.nodeid):
            item.add_marker(pytest.mark.usefixtures("no_orphans"))
    lacking = [name for name, is_here in (("gpu", has_gpu), ("tun", has_tun)) if not is_here()]
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in lacking)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if IN_CI and report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{reason} (nothing may be skipped where CI=true)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    _refuse_skip(report)
    if report.failed:
        seed = item.config.stash[SEED]
        report.sections.append(("replay", f"{SEED_VARIABLE}={seed} python -m pytest '{item.nodeid}'"))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    _refuse_skip(report)
    return report


# --- nothing left behind


def _marked(test_id: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(TEST_ID_VARIABLE) == test_id and process.pid != os.getpid():
                found.append(process)
        except psutil.Error:
            continue
    return found


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return str(process.pid)


def _end_after_grace(processes: list[psutil.Process]) -> list[str]:
    """Descriptions of those that had to be killed; Python's own helper ends with the session."""
    started = [process for process in processes if "multiprocessing.resource_tracker" not in _describe(process)]
    _, alive = psutil.wait_procs(started, timeout=ORPHAN_GRACE_S)
    described = [_describe(process) for process in alive]
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=ORPHAN_GRACE_S)
    return described


@contextmanager
def no_process_outlives() -> Iterator[str]:
    """Fails when a process started inside the block is alive `ORPHAN_GRACE_S` after it; kills it then.

    Knows children by an environment variable, whose value it yields: double forks and daemons are found too.
    """
    test_id = uuid.uuid4().hex
    outer = os.environ.get(TEST_ID_VARIABLE)
    os.environ[TEST_ID_VARIABLE] = test_id
    try:
        yield test_id
    finally:
        os.environ.pop(TEST_ID_VARIABLE)
        if outer is not None:
            os.environ[TEST_ID_VARIABLE] = outer
        left = _end_after_grace(_marked(test_id))
        if left:
            pytest.fail("processes outlived their test:\n" + "\n".join(left))


@pytest.fixture
def no_orphans() -> Iterator[str]:
    """Every process that the test starts must be gone when it ends. Automatic where `STARTS_PROCESSES`."""
    with no_process_outlives() as test_id:
        yield test_id


@pytest.fixture(scope="module")
def no_module_orphans() -> Iterator[str]:
    """The same for processes that a module's tests share: the fixture that starts them asks for this one."""
    with no_process_outlives() as test_id:
        yield test_id

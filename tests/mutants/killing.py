"""What a mutant has to get past: unit tests of `protocol/`, simulated swarms, the other tests of the simulator.

One process imports and collects all of it once. Each mutant gets a fork of that process, where it takes the place of the true
function. The cheap tests come first, and of the unit tests those that import the changed module.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from sys import stderr
from typing import NoReturn

import pytest

from tests.mutants.edits import Mutant
from tests.mutants.lives import SWEEPS, NoEnd, live
from tests.mutants.swap import swap

PYTEST = ["-q", "-s", "--no-header", "--tb=line", "--timeout=900", "-m", "not full"]
"""A stage has its own limit, in seconds of computing; a test that is only slow beside other work says nothing of a mutant."""
STAGES = ("unit", "swarms", "sim")
LEAST_LIMIT_S, LIMIT_FACTOR = 30.0, 4.0
"""Of the time that a stage takes without a mutant."""
FIRST_LIMIT_S = 900.0
"""While that is not known."""
TEST_LIMIT_S = {"unit": 40.0, "sim": 120.0}
"""Of computing, for one test: many times what any takes without a mutant."""
MOST_MEMORY_BYTES = 4 << 30
"""A mutant that grows without end is stopped before the machine is."""
TOO_SLOW = "Failed: Timeout"
"""What pytest says of a test that had to be ended."""
IMPORTS = re.compile(r"^\s*(?:from|import) (protocol\.\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a mutant."""

    mutant: Mutant
    stage: str
    """In which it was killed; '' if it survived all."""
    seconds: float
    """Of computing."""
    by_time: bool = False
    """Nothing noticed it but a time limit."""
    witness: str = ""
    """The test or the swarm that noticed."""


class NoTestError(Exception):
    """The tests do not run, or not all hold, without any mutant."""


def unit_tests(folder: Path, path: str) -> list[str]:
    """Files of unit tests that import something of `protocol/`. First the one that is called like the module at `path`, then
    those that import it; within both parts first those that are about the protocol only."""
    name = path.rpartition("/")[2].removesuffix(".py")
    found = []
    for file in sorted((folder / "tests/unit").glob("test_*.py")):
        imported = set(IMPORTS.findall(file.read_text()))
        if imported:
            about = file.stem.removeprefix("test_").removeprefix("protocol_")
            farness = (about != name, f"protocol.{name}" not in imported, not file.stem.startswith("test_protocol_"))
            found.append((farness, str(file.relative_to(folder))))
    return [test for _, test in sorted(found)]


def sim_tests(folder: Path) -> list[str]:
    """Files of tests of the simulator that do something else than `tests.mutants.lives`."""
    found = sorted(p for p in (folder / "tests/sim").glob("test_*.py") if p.name not in SWEEPS)
    return [str(p.relative_to(folder)) for p in found]


def let_loose(root: Path, drawn: list[Mutant], jobs: int, trust: bool, tell: Callable[[int, Fate], None]) -> list[Fate]:
    """All of them, so many at a time; `tell` hears of each as it ends. `trust`: that all holds without a mutant."""
    trial = Trial(root, drawn, jobs, trust, tell)
    with redirect_stdout(stderr):
        pytest.main([*PYTEST, "--rootdir", str(root), *unit_tests(root, ""), *sim_tests(root)], plugins=[trial])
    if trial.trouble:
        raise NoTestError(trial.trouble)
    return [trial.fates[mutant] for mutant in drawn]


@dataclass(slots=True)
class Child:
    """A forked process, with the mutant in it (None: without one) and the folder that is its own."""

    mutant: Mutant | None
    folder: Path

    @property
    def diary(self) -> Path:
        """Lines that it writes as it goes: `stage NAME`, `at TEST`, `late`, `over NAME SECONDS`, and at last `survived`."""
        return self.folder / "diary"


class Trial:
    """A plugin that takes the place of pytest's loop over the tests."""

    def __init__(self, root: Path, drawn: list[Mutant], jobs: int, trust: bool, tell: Callable[[int, Fate], None]) -> None:
        self.fates: dict[Mutant, Fate] = {}
        self.trouble = "pytest does not get as far as to run tests"
        self._root, self._jobs, self._tell = root, jobs, tell
        self._todo: list[Mutant | None] = [*([] if trust else [None]), *drawn]
        self._limits = dict.fromkeys(STAGES, FIRST_LIMIT_S)
        self._running: dict[int, Child] = {}
        self._has_failed = self._is_late = False

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """A test's own limit counts on a machine that does nothing else."""
        for node in {node for item in items for node in item.listchain()}:
            node.own_markers = [mark for mark in node.own_markers if mark.name != "timeout"]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running the tests here: in forks."""
        if session.testsfailed or not session.items:
            return True
        self.trouble = ""
        with tempfile.TemporaryDirectory(prefix="regrow-mutants-") as folder:
            try:
                while (self._todo or self._running) and not self.trouble:
                    while self._todo and len(self._running) < self._jobs:
                        self._fork(Path(folder), session)
                    self._wait()
            except KeyboardInterrupt:
                self.trouble = "interrupted"
            finally:
                for pid in self._running:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    _end_group(pid)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """In a fork: the first test that fails is enough."""
        self._has_failed |= report.failed
        self._is_late |= report.failed and TOO_SLOW in report.longreprtext

    # ---- here ----

    def _fork(self, folder: Path, session: pytest.Session) -> None:
        child = Child(self._todo.pop(0), Path(tempfile.mkdtemp(dir=folder)))
        child.diary.touch()
        pid = os.fork()
        if not pid:
            self._live(child, session)
        self._running[pid] = child

    def _wait(self) -> None:
        pid, status, used = os.wait4(-1, 0)
        child = self._running.pop(pid)
        _end_group(pid)
        seconds = used.ru_utime + used.ru_stime
        self._judge(child, child.diary.read_text().splitlines(), os.waitstatus_to_exitcode(status), seconds)
        shutil.rmtree(child.folder, ignore_errors=True)

    def _judge(self, child: Child, lines: list[str], code: int, seconds: float) -> None:
        stages = [line.split()[1] for line in lines if line.startswith("stage ")]
        begun = [line.removeprefix("at ") for line in lines if line.startswith("at ")]
        witness = (begun[-1] if begun else "nothing begun").removeprefix("tests/")
        if code:
            witness += f" (exit code {code})"
        survived = lines[-1:] == ["survived"]
        if not stages:
            self.trouble = f"cannot be let loose: {child.mutant and child.mutant.id}"
        elif child.mutant:
            late = "late" in lines or code == -signal.SIGXCPU
            fate = Fate(child.mutant, "", seconds) if survived else Fate(child.mutant, stages[-1], seconds, late, witness)
            self.fates[child.mutant] = fate
            self._tell(len(self.fates), fate)
        elif not survived:
            self.trouble = f"'{stages[-1]}' does not hold without a mutant: {witness}"
        for words in (line.split() for line in lines if not child.mutant and line.startswith("over ")):
            self._limits[words[1]] = max(LEAST_LIMIT_S, LIMIT_FACTOR * float(words[2]))

    # ---- in a fork ----

    def _live(self, child: Child, session: pytest.Session) -> NoReturn:
        """All stages, until something fails."""
        try:
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
            diary, nothing = os.open(child.diary, os.O_WRONLY | os.O_APPEND), os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(nothing, fd)
            os.environ["PYTEST_DEBUG_TEMPROOT"] = str(child.folder)
            self._pass_stages(child.mutant, session, lambda line: os.write(diary, f"{line}\n".encode()))
        finally:  # what a swarm raises kills the mutant; and nothing of the process around this may go on here
            os._exit(0)

    def _pass_stages(self, mutant: Mutant | None, session: pytest.Session, write: Callable[[str], object]) -> None:
        try:
            if mutant:
                swap(mutant, self._root)
            if all(self._holds(stage, mutant, session, write) for stage in STAGES):
                write("survived")
        except NoEnd:
            write("late")

    def _holds(self, stage: str, mutant: Mutant | None, session: pytest.Session, write: Callable[[str], object]) -> bool:
        write(f"stage {stage}")
        began = _used_s()
        ends = began + self._limits[stage]
        if stage == "swarms":
            _end_at(ends)
            live(lambda line: write(f"at {line}"))
        else:
            path = mutant.path if mutant else ""
            items = _in_order(session.items, self._files(stage, path), self._root)
            self._run(items, lambda: _end_at(min(ends, _used_s() + TEST_LIMIT_S[stage])), write)
        if self._has_failed:
            if self._is_late:
                write("late")
            return False
        write(f"over {stage} {_used_s() - began:.1f}")
        return True

    def _files(self, stage: str, path: str) -> list[str]:
        return unit_tests(self._root, path) if stage == "unit" else sim_tests(self._root)

    def _run(self, items: list[pytest.Item], begin: Callable[[], None], write: Callable[[str], object]) -> None:
        for index, item in enumerate(items):
            following = items[index + 1] if index + 1 < len(items) else None
            write(f"at {item.nodeid}")
            begin()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._has_failed:
                return


def _in_order(items: Iterable[pytest.Item], files: list[str], root: Path) -> list[pytest.Item]:
    """Tests of these files, in this order."""
    place = {root / file: index for index, file in enumerate(files)}
    return sorted((item for item in items if item.path in place), key=lambda item: place[item.path])


def _end_at(used_s: float) -> None:
    """This process ends when it has computed for so long altogether."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(used_s) + 1, resource.RLIM_INFINITY))


def _used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _end_group(pid: int) -> None:
    """The process and all that it has started."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass

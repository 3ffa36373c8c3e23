"""What a mutant has to get past: unit tests of `protocol/`, simulated swarms, the other tests of the simulator. The cheap come
first, and of the unit tests those that import the changed module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.edits import Mutant
from tests.mutants.lives import ENDLESS, SWEEPS
from tests.mutants.tree import Ran, Tree

PYTEST = ["-m", "pytest", "-x", "-q", "--no-header", "--tb=line", "--timeout=240", "-m", "not full"]
"""A stage has its own limit, measured here and now; a test that is only slow beside other work says nothing of a mutant."""
FAILED, WRONG_USE = (1, 2, 3), (4, 5)
"""Exit codes of pytest: a test failed, or could not even be read; nothing was tested."""
LEAST_LIMIT_S, LIMIT_FACTOR = 60.0, 4.0
"""Of the time that a stage takes without a mutant."""
FIRST_LIMIT_S = 1800.0
TOO_SLOW = re.compile(f"Failed: Timeout|{ENDLESS}")
"""What a test or a swarm says that had to be ended."""
IMPORTS = re.compile(r"^\s*(?:from|import) (protocol\.\w+)", re.MULTILINE)

Stage = tuple[str, list[str]]
"""(name, arguments of python)"""


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a mutant."""

    mutant: Mutant
    stage: str
    """In which it was killed; '' if it survived all."""
    seconds: float
    by_time: bool = False
    """Nothing noticed it but a time limit."""
    witness: str = ""
    """The test or the swarm that noticed."""


class NoTestError(Exception):
    """The tests do not run, or not all hold, without any mutant."""


def stages_for(folder: Path, path: str = "") -> Iterator[Stage]:
    """The stages, for a mutant of the file."""
    yield "unit", [*PYTEST, *unit_tests(folder, path)]
    yield "swarms", ["-m", "tests.mutants.lives"]
    others = sorted(p for p in (folder / "tests/sim").glob("test_*.py") if p.name not in SWEEPS)
    yield "sim", [*PYTEST, *(str(p.relative_to(folder)) for p in others)]


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


def limits_of(tree: Tree, tell: Callable[[str], None], trust: bool) -> dict[str, float]:
    """Seconds that each stage may take with a mutant; measured without one, where all must hold. `trust`: take it on trust."""
    where = tree.run(["-c", "import protocol; print(protocol.__file__)"], FIRST_LIMIT_S)
    if str(tree.folder) not in where.output:
        raise NoTestError(f"the copy would test other code than its own: {where.output}")
    limits: dict[str, float] = {}
    for name, arguments in stages_for(tree.folder):
        if trust:
            limits[name] = FIRST_LIMIT_S
            continue
        ran = tree.run(arguments, FIRST_LIMIT_S)
        if ran.code != 0:
            raise NoTestError(f"'{name}' does not hold without a mutant (exit code {ran.code}):\n{ran.output}")
        limits[name] = max(LEAST_LIMIT_S, LIMIT_FACTOR * ran.seconds)
        tell(f"without a mutant: {name} holds, {ran.seconds:.0f} s")
    return limits


def fate_of(mutant: Mutant, tree: Tree, limits: dict[str, float]) -> Fate:
    """Let it loose in the copy, and mend the copy after."""
    seconds = 0.0
    before = tree.mutate(mutant)
    try:
        for name, arguments in stages_for(tree.folder, mutant.path):
            ran = tree.run(arguments, limits[name])
            seconds += ran.seconds
            if ran.code is None:
                return Fate(mutant, name, seconds, True, f"not over after {limits[name]:.0f} s")
            if "pytest" in arguments and ran.code in WRONG_USE:
                raise NoTestError(f"'{name}' tests nothing:\n{ran.output}")
            if ran.code != 0:
                return Fate(mutant, name, seconds, bool(TOO_SLOW.search(ran.output)), witness_of(name, ran))
    finally:
        tree.write(mutant.path, before)
    return Fate(mutant, "", seconds)


def witness_of(stage: str, ran: Ran) -> str:
    """Which test or which swarm it was, as far as the output says."""
    if stage == "swarms":
        begun = [line for line in ran.output.splitlines() if re.fullmatch(r"\w+ \d+", line)]
        return begun[-1] if begun else f"exit code {ran.code}"
    named = re.findall(r"^(?:FAILED|ERROR) (\S+)", ran.output, re.MULTILINE)
    return str(named[0]).removeprefix("tests/") if named else f"exit code {ran.code}"

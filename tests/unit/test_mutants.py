"""`make mutants` makes of code what it says: checked on toys, and that the named mutants and the explanations fit the code."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.edits import Mutant, all_mutants, choose, mutants_of
from tests.mutants.explained import EXPLAINED
from tests.mutants.killing import sim_tests, unit_tests
from tests.mutants.lives import KINDS, MOST, SWEEPS, schedule
from tests.mutants.named import NAMED, named_mutants

ROOT = Path(__file__).parents[2]
TOY = '''"""3 == 3"""

LIMIT = 7


class Toy:
    """4 < 5"""

    def __repr__(self) -> str:
        return "a" if 1 < 2 else "b"

    def told(self, n: int) -> list[object]:
        """5 < 6"""
        assert n > 0, "mine"
        if n >= 3:
            raise ValueError("näy" + str(n == 8))
        return [Note("x", n == 9), f"{n > 4}", self.now - self.at > n.limit_s]


def ready(seat: object, key: int) -> bool:
    if not seat:
        return False
    return (seat or key) and key not in range(2)


def rate(over: float) -> float:
    return over + 0.5 if over is None else -1e9
'''
CHANGES = {
    "Toy.told: `n < 3` for `n >= 3`",
    "Toy.told: `n > 3` for `n >= 3`",
    "Toy.told: never `if n >= 3`",
    "Toy.told: 4 for 3 in `if n >= 3:`",
    "Toy.told: `self.now - self.at <= n.limit_s` for `self.now - self.at > n.limit_s`",
    "ready: never `if not seat`",
    "ready: True for False in `return False`",
    "ready: without `seat` in `seat or key`",
    "ready: without `key` in `seat or key`",
    "ready: without `seat or key` in `(seat or key) and key not in range(2)`",
    "ready: without `key not in range(2)` in `(seat or key) and key not in range(2)`",
    "ready: `key in range(2)` for `key not in range(2)`",
    "ready: 3 for 2 in `return (seat or key) and key not in range(2)`",
    "rate: `over is not None` for `over is None`",
    "rate: 1.0 for 0.5 in `return over + 0.5 if over is None else -1e9`",
}


def toys() -> list[Mutant]:
    return mutants_of("protocol/toy.py", TOY.encode())


def test_a_toy_is_made_wrong_in_each_place_and_nowhere_else() -> None:
    assert {mutant.id.removeprefix("protocol/toy.py ") for mutant in toys()} == CHANGES


def test_each_edit_changes_one_place_and_leaves_python() -> None:
    for mutant in toys():
        changed = mutant.apply(TOY.encode()).decode()
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(TOY)), mutant.id
        differing = [n for n, (a, b) in enumerate(zip(TOY.splitlines(), changed.splitlines(), strict=True), 1) if a != b]
        assert differing == [mutant.line], mutant.id


def test_what_is_left_of_a_condition_keeps_its_parentheses() -> None:
    (mutant,) = [m for m in toys() if "without `key not in" in m.what]
    assert "    return (seat or key)\n" in mutant.apply(TOY.encode()).decode()


def test_an_edit_does_not_fit_other_code() -> None:
    with pytest.raises(AssertionError, match="should be"):
        toys()[0].apply(b"#" + TOY.encode())


def test_the_draw_depends_on_the_seed_alone_and_is_fair_to_all_kinds() -> None:
    drawn = choose(toys(), 6, seed=1)
    assert drawn == choose(toys(), 6, seed=1)
    assert any(choose(toys(), 6, seed) != drawn for seed in (2, 3, 4))
    assert sorted(m.kind for m in drawn) == ["check", "check", "comparison", "comparison", "constant", "constant"]
    assert len(choose(toys(), 1000, seed=1)) == len(toys()) == len(CHANGES)


# ---- the real code


def test_the_named_ones_are_where_they_are_said_to_be() -> None:
    mutants = named_mutants(ROOT)
    assert [m.name for m in mutants] == [
        "no dedupe",
        "no ballot check",
        "apply before all reduced",
        "stale attempt accepted",
        "lapse ignored",
    ]
    for mutant in mutants:
        source = (ROOT / mutant.path).read_bytes()
        assert ast.dump(ast.parse(mutant.apply(source))) != ast.dump(ast.parse(source))


def test_a_named_one_whose_code_has_moved_says_so() -> None:
    moved = replace(NAMED[0], before="key in attempt.never")
    with pytest.raises(ValueError, match=r"'no dedupe': protocol/seat.py Seat.take holds .* 0 times"):
        moved.locate((ROOT / moved.path).read_bytes())
    with pytest.raises(ValueError, match=r"has no Seat\.gone any more"):
        replace(NAMED[0], function="Seat.gone").locate((ROOT / moved.path).read_bytes())


def test_what_is_explained_is_still_there() -> None:
    mutants = all_mutants(ROOT)
    assert not set(EXPLAINED) - {mutant.id for mutant in mutants}
    for mutant in choose(mutants, 45, seed=1):
        ast.parse(mutant.apply((ROOT / mutant.path).read_bytes()))


def test_tests_of_the_changed_module_come_first() -> None:
    names = unit_tests(ROOT, "protocol/ledger.py")
    imports = ["protocol.ledger import" in (ROOT / name).read_text() for name in names]
    assert any(imports)
    assert imports == sorted(imports, reverse=True)
    assert set(names) == set(unit_tests(ROOT, ""))
    assert unit_tests(ROOT, "protocol/workbench.py")[0] == "tests/unit/test_protocol_workbench.py"


def test_all_kinds_of_swarms_take_turns() -> None:
    assert {kind for kind, _ in schedule(15)} == set(KINDS)
    assert len(set(schedule(10_000))) == MOST <= 250
    assert all((ROOT / "tests/sim" / name).is_file() for name in SWEEPS)
    assert not {Path(name).name for name in sim_tests(ROOT)} & set(SWEEPS)


def test_the_draw_stays_when_the_code_changes_elsewhere() -> None:
    shifted = mutants_of("protocol/toy.py", TOY.replace("LIMIT = 7", "LIMIT = 7\nMORE = 8").encode())
    assert [m.id for m in choose(shifted, 6, seed=1)] == [m.id for m in choose(toys(), 6, seed=1)]
    fewer = [m for m in toys() if not m.function.startswith("Toy")]
    kept = [m for m in choose(toys(), 6, seed=1) if m in fewer]
    assert kept
    assert set(kept) <= set(choose(fewer, 6, seed=1))


# ---- in memory


RULES = """
from functools import lru_cache


class Rule:
    @property
    def limit(self):
        return 3 if self.__class__ is Rule else 4


@lru_cache
def is_low(n):
    while n > 10:
        n = n - 1
    return n < Rule().limit


def is_zero(n):
    return n == 0
"""
ABOUT = """from protocol.ids import Member
from rules.toy import is_low, is_zero

assert is_low(2), "and it is remembered"


def test_low():
    assert is_low(2)
    assert not is_low(14)


def test_limit():
    assert not is_low(3)
"""
CALL = """
import sys
from pathlib import Path
from tests.mutants import killing
from tests.mutants.edits import mutants_of

killing.STAGES, killing.FIRST_LIMIT_S = ("unit",), 0.5
root = Path(sys.argv[1])
every = mutants_of("rules/toy.py", (root / "rules/toy.py").read_bytes())
drawn = [mutant for mutant in every if mutant.what in sys.argv[2:]]
for fate in killing.let_loose(root, drawn, 2, True, lambda number, fate: None):
    print(fate.mutant.what, "|", fate.stage, fate.by_time, fate.witness)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in {"rules/toy.py": RULES, "tests/unit/test_toy.py": ABOUT, "pyproject.toml": "[tool.pytest]\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.timeout(240)
def test_mutants_are_let_loose_one_at_a_time_and_no_file_is_changed(root: Path, no_orphans: str) -> None:
    fates = {
        "4 for 3 in `return 3 if self.__class__ is Rule else 4`": "unit False unit/test_toy.py::test_limit",
        "`n >= Rule().limit` for `n < Rule().limit`": "unit False unit/test_toy.py::test_low",
        "0 for 1 in `n = n - 1`": "unit True unit/test_toy.py::test_low (exit code -24)",
        "`n != 0` for `n == 0`": " False ",
    }
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{root}"}
    command = [sys.executable, "-c", CALL, str(root), *fates]
    ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    assert dict(line.split(" | ") for line in ran.stdout.splitlines()) == fates
    assert (root / "rules/toy.py").read_text() == RULES

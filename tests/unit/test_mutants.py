"""`make mutants` makes of code what it says: checked on toys, and that the named mutants and the explanations fit the code."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.edits import Mutant, all_mutants, choose, mutants_of
from tests.mutants.explained import EXPLAINED
from tests.mutants.killing import Fate, unit_tests, witness_of
from tests.mutants.lives import KINDS, MOST, SWEEPS, schedule
from tests.mutants.named import NAMED, named_mutants
from tests.mutants.tree import Ran, Tree

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


# ---- the copy


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "protocol").mkdir(parents=True)
    (root / "protocol/toy.py").write_text("def f(a):\n    return a < 1\n")
    (root / "untracked.py").write_text("")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    subprocess.run(["git", "-C", str(root), "add", "protocol"], check=True)
    return root


def test_only_a_copy_is_made_wrong(repository: Path, tmp_path: Path) -> None:
    before = (repository / "protocol/toy.py").read_bytes()
    tree = Tree(repository, tmp_path / "copy")
    ask = ["-c", "import protocol.toy as t; print(t.__file__, t.f(0))"]
    assert "True" in tree.run(ask, 30.0).output
    (mutant,) = [m for m in all_mutants(tree.folder) if ">=" in m.after]
    kept = tree.mutate(mutant)
    said = tree.run(ask, 30.0).output
    assert "False" in said
    assert str(tree.folder) in said
    assert (repository / "protocol/toy.py").read_bytes() == kept == before
    tree.write(mutant.path, kept)
    assert "True" in tree.run(ask, 30.0).output
    assert not (tree.folder / "untracked.py").exists()


def test_what_hangs_is_ended(repository: Path, tmp_path: Path, no_orphans: str) -> None:
    tree = Tree(repository, tmp_path / "copy")
    forever = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    assert tree.run(["-c", forever], 0.5).code is None


def test_who_noticed_is_told() -> None:
    failed = Ran(1, 1.0, "F\n=== short\nFAILED tests/unit/test_a.py::test_b - assert 0\n1 failed in 1 s\n")
    assert witness_of("unit", failed) == "unit/test_a.py::test_b"
    assert witness_of("swarms", Ran(1, 1.0, "static 0\nchurn 3\nTraceback ...\nBrokenError: S2\n")) == "churn 3"
    assert not Fate(toys()[0], "", 1.0).by_time

"""The list of field cases names tests that there are, and counts are told to those that count."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.field.cases import CASES, cases_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("test", sorted({test for tests in CASES.values() for test in tests}))
def test_every_test_of_a_case_is_there(test: str) -> None:
    path, _, function = test.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert function in found if function else any(name.startswith("test_") for name in found)


def test_every_field_test_belongs_to_a_case() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").glob("*/test_field_*.py")]
    assert [file for file in files if not cases_of(file) and file != "tests/unit/test_field_cases.py"] == []


def test_a_test_is_found_by_its_id() -> None:
    assert cases_of("tests/integration/test_field_lost_peer.py::test_any[one]")[0] == "1"
    assert cases_of("tests/integration/test_cli_bad_input.py::test_bad_flag[--listen]") == ["2"]
    assert cases_of("tests/integration/test_cli_bad_input.py::test_help_is_quick_and_imports_nothing_slow") == []


def test_every_case_stands_in_the_documentation() -> None:
    rows = [
        line.split("|")[1].strip() for line in (ROOT / "docs/field-cases.md").read_text().splitlines() if line.startswith("|")
    ]
    assert set(CASES) == set(rows[2:])

"""`make field`: every case of docs/field-cases.md by its tests, as often as each is worth trying. Everything for people goes to
stderr; the last line on stdout is JSON: by case the tests, those that failed, seconds, and what was measured."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any

import pytest

from tests.field.cases import CASES, cases_of


class Figures:
    """A pytest plugin that adds up what comes of each case."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Each test has three: set-up, call, teardown. What it recorded comes with each, and is taken once."""
        for case in cases_of(report.nodeid):
            figures = self.found.setdefault(case, {"tests": 0, "failed": 0, "seconds": 0.0})
            figures["tests"] += report.when == "call"
            figures["failed"] += report.failed
            figures["seconds"] = round(figures["seconds"] + report.duration, 1)
            if report.when == "call":
                figures.update(report.user_properties)


def main() -> int:
    """See the module. 0 where every test of every case passed."""
    parser = argparse.ArgumentParser(prog="make field")
    parser.add_argument("--case", action="append", choices=CASES, metavar="CASE", help="only this one; may be repeated")
    parser.add_argument("--once", action="store_true", help="each once, as in make test-full")
    asked = parser.parse_args()
    cases = asked.case or list(CASES)
    asked_for = dict.fromkeys(test for case in cases for test in CASES[case])
    tests = [test for test in asked_for if "::" not in test or test.partition("::")[0] not in asked_for]
    figures = Figures()
    with contextlib.redirect_stdout(sys.stderr):
        counts = [] if asked.once else ["--full-counts"]
        code = pytest.main(["-q", *counts, *tests], plugins=[figures])
    print(json.dumps({case: figures.found[case] for case in cases if case in figures.found}))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())

"""The promises of tests/conftest.py, each tried in a session of its own."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import psutil
import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with our conftest and our markers, as if run by a person."""
    monkeypatch.delenv("CI", raising=False)
    pytester.makeconftest(CONFTEST.read_text(encoding="utf-8"))
    pytester.makeini("[pytest]\nmarkers =\n  full: long\n  gpu: needs CUDA\n  field(times): counted\n")
    return pytester


def run(inner: pytest.Pytester, source: str, *args: str) -> pytest.RunResult:
    inner.makepyfile(source)
    return inner.runpytest_subprocess("-p", "no:cacheprovider", *args)


SKIPS = """
    import pytest
    def test_skips():
        pytest.skip("no server")
"""


def test_a_skip_is_a_skip_for_a_person(inner: pytest.Pytester) -> None:
    run(inner, SKIPS).assert_outcomes(skipped=1)


def test_a_skip_fails_in_ci(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    result = run(inner, SKIPS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no server (nothing may be skipped where CI=true)*"])


def test_a_skipped_module_fails_in_ci(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    result = run(inner, "import pytest\npytest.importorskip('no_such_module')\ndef test_x(): pass")
    result.assert_outcomes(errors=1)


SIDE_BY_SIDE = "-p no:cacheprovider --import-mode=importlib -n 2 --dist loadscope --no-loadscope-reorder".split()

WHERE = """
    import os, pytest
    @pytest.mark.parametrize("n", range(4))
    def test_where(n):
        print(f"WHERE {__file__.rsplit('/', 2)[-2]} {os.environ['PYTEST_XDIST_WORKER']} END")
"""


def test_swarms_run_one_after_the_other(inner: pytest.Pytester) -> None:
    for name in ("tests/integration/test_one", "tests/integration/test_two", "tests/chaos/test_three", "tests/unit/test_four"):
        path = inner.path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(WHERE))
    result = inner.runpytest_subprocess(*SIDE_BY_SIDE, "-rP")
    result.assert_outcomes(passed=16)
    places = [line.split()[1:3] for line in result.outlines if line.startswith("WHERE ")]
    assert len({worker for folder, worker in places if folder in ("integration", "chaos")}) == 1
    assert len({worker for folder, worker in places if folder == "unit"}) == 1


def test_what_simulations_count_is_told_by_the_session_as_a_whole(inner: pytest.Pytester) -> None:
    """Nothing but tests/conftest.py is loaded where no test runs."""
    for name in ("sim/test_one", "sim/test_two", "integration/test_three"):
        path = inner.path / f"tests/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def test_counts(tally): tally['seeds'] += 5")
    result = inner.runpytest_subprocess(*SIDE_BY_SIDE)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["simulated swarms: seeds 15"])


def test_gpu_tests_are_deselected_where_there_is_none(inner: pytest.Pytester) -> None:
    result = run(inner, "import pytest\n@pytest.mark.gpu\ndef test_x(): pass\ndef test_y(): pass")
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] + outcomes.get("deselected", 0) == 2


SEEDED = """
    import hypothesis, hypothesis.strategies as st
    def test_fixture(seed):
        print("fixture drew", seed)
        assert False
    @hypothesis.given(st.integers(0, 2**60))
    def test_property(number):
        print("property drew", number)
        assert number < 1000
"""


def drawn(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if " drew " in line]


def test_a_session_can_be_replayed(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGROW_TEST_SEED", "7")
    first = run(inner, SEEDED)
    first.stdout.fnmatch_lines(["seed: 7 *", "*REGROW_TEST_SEED=7 python -m pytest *"])
    assert len(drawn(first)) > 2
    assert drawn(run(inner, SEEDED)) == drawn(first)
    monkeypatch.setenv("REGROW_TEST_SEED", "8")
    assert drawn(run(inner, SEEDED)) != drawn(first)


ORPHAN = """
    import pathlib, subprocess, sys
    def test_x(no_orphans):
        sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
        child = subprocess.Popen(sleeper, start_new_session=True)
        pathlib.Path("pid").write_text(str(child.pid))
        {afterwards}
"""


def test_a_process_left_behind_fails_its_test_and_is_ended(inner: pytest.Pytester) -> None:
    result = run(inner, ORPHAN.format(afterwards="pass"))
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*processes outlived their test:*", "*time.sleep(60)*"])
    assert not psutil.pid_exists(int((inner.path / "pid").read_text()))


def test_a_process_that_ended_is_fine(inner: pytest.Pytester) -> None:
    run(inner, ORPHAN.format(afterwards="child.kill(); child.wait()")).assert_outcomes(passed=1)


COUNTED = """
    import pytest
    @pytest.mark.field(7)
    @pytest.mark.timeout(10)
    def test_counted(times, request):
        print(f"GOES {times} TIMES IN {request.node.get_closest_marker('timeout').args[0]}")
    @pytest.mark.timeout(10)
    def test_other(times, request):
        print(f"OTHER {times} TIMES IN {request.node.get_closest_marker('timeout').args[0]}")
"""


def test_field_cases_are_gone_through_as_often_as_they_say(inner: pytest.Pytester) -> None:
    ended = run(inner, COUNTED, "-s", "--full-counts")
    ended.stdout.fnmatch_lines(["*GOES 7 TIMES IN 70*", "*OTHER 1 TIMES IN 10*"])

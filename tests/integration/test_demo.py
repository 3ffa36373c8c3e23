"""`regrow demo` as a stranger meets it: the result, what is kept, and that nothing is left whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from node.data.corpus import sotu_files
from node.event_log import read_events
from tests.integration.ends import gone
from tests.tools.command import ROOT
from tests.tools.contract import violations
from tests.tools.swarm import wait_for

pytestmark = pytest.mark.timeout(240)
STEPS = 12
UP_LIMIT_S = 120
END_LIMIT_S = 10


@pytest.fixture(scope="module")
def text() -> Path:
    """One long speech."""
    return max(sotu_files(), key=lambda path: path.stat().st_size)


@contextmanager
def demo(text: Path, tmp: Path, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A demo of three processes whose temporary files go below `tmp`."""
    command = [sys.executable, "-m", "node", "demo", "--data", str(text), "--block-stages", "2", *args]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def finished(text: Path, tmp_path_factory: pytest.TempPathFactory, no_module_orphans: str) -> Iterator[dict[str, Any]]:
    """A demo that ran to its end: code, out, err, keep, tmp."""
    keep = tmp_path_factory.mktemp("demo") / "keep"
    with tempfile.TemporaryDirectory(prefix="rg", dir="/tmp") as folder:
        tmp = Path(folder)
        with demo(text, tmp, "--steps", str(STEPS), "--seed", "3", "--keep", str(keep), "--json") as process:
            out, err = process.communicate(timeout=220)
        yield {"code": process.returncode, "out": out, "err": err, "keep": keep, "tmp": tmp}


@pytest.fixture
def tmp() -> Iterator[Path]:
    """A short TMPDIR: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="rg", dir="/tmp") as folder:
        yield Path(folder)


def test_last_line_is_the_result(finished: dict[str, Any]) -> None:
    assert finished["code"] == 0, finished["err"]
    result = json.loads(finished["out"].splitlines()[-1])
    assert violations("demo", result) == []
    assert (result["steps"], result["block_stages"], result["recoveries"]) == (STEPS, 2, 0)
    assert result["last_loss"] < result["first_loss"] - 0.2
    assert len(set(result["pids"])) == 3


def test_losses_are_means_over_five_steps(finished: dict[str, Any]) -> None:
    result = json.loads(finished["out"].splitlines()[-1])
    events = read_events(finished["keep"] / "stage-0" / "events.jsonl")
    losses = [event["value"] for event in events if event["type"] == "loss"]
    assert len(losses) == STEPS
    assert result["first_loss"] == pytest.approx(sum(losses[:5]) / 5)
    assert result["last_loss"] == pytest.approx(sum(losses[-5:]) / 5)


def test_what_is_kept(finished: dict[str, Any]) -> None:
    keep: Path = finished["keep"]
    assert (keep / "run.yaml").read_text().count("seed: 3")
    for stage in range(3):
        events = read_events(keep / f"stage-{stage}" / "events.jsonl")
        assert not [line for event in events for line in violations("event", event)]
        held = {event["stage"] for event in events if event["type"] == "accumulated"}
        assert held == {stage}


def test_nothing_else_is_left(finished: dict[str, Any]) -> None:
    assert os.listdir(finished["tmp"]) == []
    pids = json.loads(finished["out"].splitlines()[-1])["pids"]
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_people_see_progress(finished: dict[str, Any]) -> None:
    assert "preparing data" in finished["err"]
    assert f"step {STEPS}/{STEPS}" in finished["err"]
    assert "Traceback" not in finished["err"]


# --- kills


@pytest.mark.full
def test_a_killed_stage_regrows_on_the_screen(text: Path, tmp: Path) -> None:
    with demo(text, tmp, "--steps", "20", "--kill", "1@6") as process:
        out, err = process.communicate(timeout=220)
    assert process.returncode == 0, err
    result = json.loads(out.splitlines()[-1])
    assert (result["steps"], result["recoveries"], len(result["pids"])) == (20, 1, 4)
    assert "the only holder of stage 1" in err
    assert "stage 1 lost a holder: not heard for" in err
    assert "stage 1 is rebuilt: 1.00 of stage 2" in err, "S1 has one block neighbour"
    assert "handed over in" in err
    assert os.listdir(tmp) == []


# --- ends before the end


def descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        return []


def nodes_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Its node processes. One that was only just forked is not known as such yet."""
    found = []
    for member in descendants(process):
        with suppress(psutil.Error):
            if "node.demo.child" in member.cmdline():
                found.append(member)
    return found


def has_nodes(process: subprocess.Popen[str]) -> bool:
    """Whether node processes were started; some of them still import."""
    return bool(nodes_of(process))


def has_all(process: subprocess.Popen[str]) -> bool:
    """Three nodes and their p2pd."""
    return len(descendants(process)) >= 6


def await_moment(process: subprocess.Popen[str], moment: Callable[[subprocess.Popen[str]], bool]) -> None:
    def reached() -> bool:
        assert process.poll() is None, process.communicate()
        return moment(process)

    wait_for(moment.__name__, reached, UP_LIMIT_S)


MOMENTS = [
    pytest.param(has_nodes, id="starting"),
    pytest.param(has_all, id="all-there", marks=pytest.mark.full),
]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("signum", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_a_signal_ends_everything(
    moment: Callable[[subprocess.Popen[str]], bool], signum: signal.Signals, text: Path, tmp: Path
) -> None:
    with demo(text, tmp, "--steps", "100000") as process:
        await_moment(process, moment)
        family = descendants(process)
        process.send_signal(signum)
        out, err = process.communicate(timeout=END_LIMIT_S)
    assert process.returncode == 128 + signum
    assert out == ""
    assert err.splitlines()[-1] == f"regrow: demo ended by {signum.name}"
    assert "Traceback" not in err
    assert all(map(gone, family)), "a process of the demo is left"
    assert os.listdir(tmp) == []


@pytest.mark.parametrize("moment", MOMENTS)
def test_nodes_die_with_a_killed_demo(moment: Callable[[subprocess.Popen[str]], bool], text: Path, tmp: Path) -> None:
    with demo(text, tmp, "--steps", "100000") as process:
        await_moment(process, moment)
        family = descendants(process)
        process.kill()
        process.communicate(timeout=END_LIMIT_S)
    _, alive = psutil.wait_procs(family, timeout=END_LIMIT_S)
    assert not alive
    [left] = os.listdir(tmp)
    from node.demo.folder import remove_stale

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp))
        remove_stale()
    assert os.listdir(tmp) == [], left


def test_a_node_that_dies_ends_the_demo(text: Path, tmp: Path) -> None:
    with demo(text, tmp, "--steps", "100000") as process:
        await_moment(process, has_nodes)
        nodes_of(process)[0].kill()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 137
    assert out == ""
    assert "stage-0" in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("regrow: ")
    assert os.listdir(tmp) == []

"""The status page of a real node, in a browser, while a stage loses its only holder and regrows."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.ends import Ending
from tests.integration.test_regrow import a_run
from tests.tools.browser import Tab, browser
from tests.tools.swarm import swarm, wait_for

LIMIT_S = 120.0
REGROW = (sys.executable, "-m", "node")
NAMES = ("anna", "<img src=x onerror=alert(1)>", "dora\u05d0\u05d1", "emil'\"</script>", "frida")
RECORD = """() => {
  window.story = [];
  const seen = new Set();
  const look = () => {
    for (const row of [...document.querySelectorAll('#events li[data-serial]')].reverse()) {
      if (seen.has(row.dataset.serial)) continue;
      seen.add(row.dataset.serial);
      const told = Date.parse(row.querySelector('time').dateTime) / 1000, text = row.querySelector('.text').textContent;
      window.story.push({ what: row.dataset.kind, text, told, shown: Date.now() / 1000 });
    }
    const state = document.querySelector(".stage[data-stage='2']").dataset.state;
    if (window.state !== state) window.story.push({ what: `stage 2 ${state}`, shown: Date.now() / 1000 });
    window.state = state;
  };
  look();
  new MutationObserver(look).observe(document.getElementById('main'), { subtree: true, childList: true, attributes: true });
}"""

MORE_POINTS = "(n) => document.querySelector('#chart-loss svg').getAttribute('aria-label').match(/: (\\d+) points/)[1] > n"
ROW = """(row) => JSON.stringify([...document.querySelectorAll('.stage')].map((stage) =>
  [...stage.querySelectorAll('.replica:not([data-state=lost]) .who')].map((who) => who.textContent))) === JSON.stringify(row)"""
NAMED = "(row) => JSON.stringify([...document.querySelectorAll('.who')].map((x) => x.textContent)) === JSON.stringify(row)"


def points(tab: Tab) -> int:
    label = tab.page.locator("#chart-loss svg").get_attribute("aria-label") or ""
    return int(label.split(": ")[1].split(" points")[0])


@pytest.mark.full
@pytest.mark.timeout(420)
def test_a_kill_is_seen_as_suspicion_then_recovery_with_its_coefficients(tmp_path: Path) -> None:
    path = a_run(tmp_path, 3, recovery__policy="checkfree", recovery__newcomer_wait_s=200.0, recovery__embedding_copies=0)
    with swarm(tmp_path) as made, browser() as chromium:
        first = made.start(path, "--stage", "0", "--name", NAMES[0], name="s0")
        invite = made.running(first).invite
        others = [made.join(invite, "--stage", str(s), "--name", NAMES[s], name=f"s{s}") for s in (1, 2, 3)]
        made.wait_step(4, LIMIT_S, others[0])
        tab = chromium.open(made.running(others[0]).http)
        tab.wait(NAMED, list(NAMES[:4]))
        tab.wait("() => document.getElementById('title').textContent === 'This node is working, and its work counts.'")
        before = points(tab)
        tab.wait(MORE_POINTS, before + 3)
        tab.page.evaluate(RECORD)
        killed = Ending(others[1])
        killed.send(signal.SIGKILL)
        killed.check()
        tab.wait("() => window.story.some((x) => x.what === 'suspected')")
        newcomer = made.join(invite, "--name", NAMES[4], name="newcomer")
        tab.wait("() => window.story.some((x) => x.what === 'rebuild')")
        tab.wait("() => window.story.length && window.state === 'single'")
        story = tab.page.evaluate("() => window.story")
        order = [entry["what"] for entry in story]
        assert order.index("suspected") < order.index("lost") < order.index("rebuild"), order
        assert order.index("suspected") <= order.index("stage 2 lost") < order.index("rebuild"), order
        seen = next(entry for entry in story if entry["what"] == "suspected")
        assert NAMES[2] in seen["text"]
        print(f"suspicion shown {seen['shown'] - seen['told']:.2f} s after the node's own")
        [rebuild] = [event for event in made.events(others[0], "rebuild") if event["stage"] == 2]
        shares = " / ".join(f"{source['coefficient']:.2f}".lstrip("0") for source in rebuild["sources"])
        said = next(entry["text"] for entry in story if entry["what"] == "rebuild")
        assert said.startswith(f"Stage 2 is rebuilt from stages 1 and 3, {shares}; handed to "), said
        regrown = points(tab)
        tab.wait(MORE_POINTS, regrown + 2)
        tab.wait(ROW, [[NAMES[0]], [NAMES[1]], [NAMES[4]], [NAMES[3]]])
        assert made.status(newcomer)["seats"][0]["stage"] == 2
        assert tab.page.evaluate("() => document.querySelectorAll('img').length") == 0
        assert tab.complaints == []
        with watching(invite, tmp_path / "seen") as (address, lines):
            outside = chromium.open(address)
            outside.wait(NAMED, [NAMES[0], NAMES[1], NAMES[4], NAMES[3]])
            outside.wait(f"() => document.getElementById('events').textContent.includes('from stages 1 and 3, {shares}')")
            outside.wait("() => document.getElementById('title').textContent === 'The run is training.'")
            assert outside.complaints == []
            wait_for("lines for people", lambda: "The run is training." in lines.read_text(), LIMIT_S)


@contextmanager
def watching(invite: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """`regrow watch`, ended by Ctrl-C: where it shows the page, and what it writes on stdout, which is no terminal here."""
    folder.mkdir()
    out, err = folder / "out", folder / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen([*REGROW, "watch", invite], stdout=stdout, stderr=stderr)
        try:
            wait_for("it watches", lambda: "http://" in err.read_text(), LIMIT_S, err.read_text)
            yield err.read_text().split("http://")[1].split("/")[0], out
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0, err.read_text()
        finally:
            process.kill()
            process.wait()

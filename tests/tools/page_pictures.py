"""Pictures of the status page for docs/page/: `python -m tests.tools.page_pictures`.

A real swarm on this machine, one node of which is killed half-way; needs Chromium, and a few minutes."""

from __future__ import annotations

import io
import os
import signal
import tempfile
from pathlib import Path

from PIL import Image

from tests.tools.browser import Browser, Tab, browser
from tests.tools.material import write_manifest
from tests.tools.swarm import Swarm, swarm, wait_for

FOLDER = Path(__file__).parents[2] / "docs" / "page"
NAMES = ("anna", "bert", "cleo", "dora", "emil")
KILLED, BEFORE, AFTER = 2, 120, 60
LIMIT_S = 400.0


def take(chromium: Browser, address: str, name: str, **how: object) -> None:
    """One picture of the whole page."""
    tab = chromium.open(address, calm=True, **how)  # type: ignore[arg-type]
    tab.wait("() => document.querySelectorAll('#chart-loss path').length > 0")
    shoot(tab, name)


def shoot(tab: Tab, name: str) -> None:
    """The most frequent colours do, exactly as they are, and are a third of the bytes."""
    with Image.open(io.BytesIO(tab.page.screenshot(full_page=True))) as whole:
        shown = whole.convert("RGB")
    counts = sorted(shown.getcolors(1 << 24) or (), reverse=True)[:256]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in counts for part in colour])
    shown.quantize(palette=palette, dither=Image.Dither.NONE).save(FOLDER / f"{name}.png", optimize=True)
    tab.page.close()


def story(made: Swarm, folder: Path, chromium: Browser) -> None:
    """From the first step to some steps after the recovery."""
    path = write_manifest(
        folder,
        num_block_stages=4,
        model__num_hidden_layers=4,
        max_steps=1000,
        batch__global_samples=16,
        evaluation__every_steps=20,
        timing__heartbeat_s=1.0,
        timing__lapse_heartbeats=4,
        recovery__policy="checkfree_plus",
        recovery__rebuild_grace_s=0.0,
        recovery__newcomer_wait_s=300.0,
    )
    first = made.start(path, "--stage", "0", "--name", NAMES[0], name="s0")
    invite = made.running(first).invite
    nodes = [first] + [made.join(invite, "--stage", str(s), "--name", NAMES[s], name=f"s{s}") for s in range(1, 5)]
    address = made.running(first).http
    made.wait_step(BEFORE, LIMIT_S)
    pid = made.running(nodes[KILLED]).pid
    os.kill(pid, signal.SIGKILL)
    lost = "() => document.querySelector(\".stage[data-stage='2']\").dataset.state === 'lost'"
    tab = chromium.open(address, calm=True)
    tab.wait(lost)
    shoot(tab, "lost")
    newcomer = made.join(invite, "--name", "frida", name="newcomer")
    wait_for("the newcomer trains", lambda: made.status(newcomer).get("seats"), LIMIT_S)
    made.wait_step(BEFORE + AFTER, LIMIT_S)
    take(chromium, address, "light")
    take(chromium, address, "dark", scheme="dark")
    take(chromium, address, "phone", width=390, height=844)


def main() -> None:
    """Write them."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, swarm(Path(folder)) as made, browser() as chromium:
        story(made, Path(folder), chromium)


if __name__ == "__main__":
    main()

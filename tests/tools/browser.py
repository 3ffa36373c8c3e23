"""A real browser for tests of the status page: Debian's Chromium, driven by Playwright; and a page that a thread serves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from node.http import HttpServer
from node.page.feed import Feed

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update"
    " --disable-sync --disable-dev-shm-usage"
).split()
LIMIT_MS = 120_000


@dataclass
class Tab:
    """One open page, and what it did that it must not."""

    page: Any
    origin: str
    complaints: list[str] = field(default_factory=list)

    def listen(self) -> None:
        """Note errors, and requests to anybody else."""
        self.page.on(
            "console", lambda said: said.type in ("error", "warning") and self.complaints.append(f"console: {said.text}")
        )
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", self._requested)

    def _requested(self, request: Any) -> None:
        if not request.url.startswith((self.origin, "data:")):
            self.complaints.append(f"request: {request.url}")

    def wait(self, script: str, what: Any = None) -> Any:
        """The first truthy value of a JavaScript expression or function."""
        return self.page.wait_for_function(script, arg=what, timeout=LIMIT_MS).json_value()


class Browser:
    """Pages on request."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium

    def open(self, address: str, *, width: int = 1280, height: int = 900, scheme: str = "light", calm: bool = False) -> Tab:
        """Open the status page at HOST:PORT and wait until it shows something. `calm`: reduced motion."""
        page = self._chromium.new_page(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            reduced_motion="reduce" if calm else "no-preference",
            locale="en-GB",
            timezone_id="UTC",
        )
        page.set_default_timeout(LIMIT_MS)
        tab = Tab(page, f"http://{address}/")
        tab.listen()
        page.goto(tab.origin)
        tab.wait("() => document.querySelectorAll('.stage').length > 0")
        return tab


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser without a window; the test is skipped where there is none."""
    if not CHROMIUM.exists():
        pytest.skip("chromium is not installed (Debian's package `chromium` has it)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS, timeout=LIMIT_MS)
        try:
            yield Browser(chromium)
        finally:
            chromium.close()


class MadeUp:
    """A page that shows what it is told to."""

    def __init__(self, view: dict[str, Any]) -> None:
        self.now = view
        self.feed = Feed(self.view, "made-up")

    def view(self) -> dict[str, Any]:
        """See `Shown`."""
        return self.now


class Served:
    """`address`, and what is shown there."""

    def __init__(self, page: MadeUp, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self._page, self.address, self._loop = page, address, loop

    def show(self, view: dict[str, Any]) -> None:
        """From now on, and told to whoever listens."""

        def change() -> None:
            self._page.now = view
            self._page.feed.refresh()

        self._loop.call_soon_threadsafe(change)


@contextmanager
def served(view: dict[str, Any]) -> Iterator[Served]:
    """The page with this view on loopback, as `--publish` serves it, in a thread."""
    page, loop = MadeUp(view), asyncio.new_event_loop()
    server = HttpServer.publish("127.0.0.1", 0, page)
    thread = threading.Thread(target=loop.run_until_complete, args=(server.serve(),), name="page")
    thread.start()
    try:
        yield Served(page, server.address, loop)
    finally:
        loop.call_soon_threadsafe(server.close)
        thread.join(30)
        loop.close()

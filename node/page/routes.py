"""The page over HTTP: one self-contained document, its JSON, and the feed. Nothing here changes anything."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import re
from collections.abc import Callable, Coroutine
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from node.page.feed import Feed, FullError, Listener

STILL_HERE_S = 15.0
WRITE_S = 20.0
"""Whoever takes nothing for so long is let go."""
SAFE = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


class Shown(Protocol):
    """Whose page it is."""

    @property
    def feed(self) -> Feed:
        """What changes."""

    def view(self) -> dict[str, Any]:
        """The page's JSON, now."""


@cache
def document() -> tuple[bytes, str]:
    """(the page, its Content-Security-Policy): style and script stand in it, and nothing else may run or be loaded."""
    html, style, chart, script = (
        files("node.page").joinpath("static", name).read_text("utf-8")
        for name in ("page.html", "page.css", "chart.js", "page.js")
    )
    html = html.replace("/*style*/", style).replace("/*script*/", chart + script)
    allowed = {tag: " ".join(map(_digest, re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.S))) for tag in ("style", "script")}
    policy = (
        f"default-src 'none'; style-src {allowed['style']}; script-src {allowed['script']}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html.encode(), policy


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def endpoints(page: Shown) -> dict[str, Endpoint]:
    """By path; all answer GET."""

    async def index(_: Request) -> Response:
        html, policy = document()
        return Response(html, media_type="text/html; charset=utf-8", headers=SAFE | {"content-security-policy": policy})

    async def view(_: Request) -> Response:
        return JSONResponse(page.view(), headers=SAFE)

    async def feed(request: Request) -> Response:
        try:
            listener = page.feed.listen(request.headers.get("last-event-id", ""))
        except FullError:
            return PlainTextResponse("as many listen as may; try again later\n", status_code=503, headers={"retry-after": "10"})
        return _Stream(page.feed, listener)

    return {"/": index, "/view": view, "/feed": feed}


class _Stream(Response):
    """Writes what a listener gets until it is gone, takes nothing, or is let go."""

    media_type = "text/event-stream"

    def __init__(self, feed: Feed, listener: Listener) -> None:
        super().__init__(headers=SAFE | {"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._feed, self._listener = feed, listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._until_gone(receive), name="end of a listener")
                with contextlib.suppress(TimeoutError):
                    await self._write(send)
                watch.cancel()
        finally:
            self._feed.leave(self._listener)

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._listener.close()

    async def _write(self, send: Send) -> None:
        """Raises `TimeoutError` where nothing is taken."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while (message := await self._next()) is not None:
            async with asyncio.timeout(WRITE_S):
                await send({"type": "http.response.body", "body": message, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self) -> bytes | None:
        """What to write now: if nothing happens, that this side is still here."""
        try:
            async with asyncio.timeout(STILL_HERE_S):
                return await self._listener.next()
        except TimeoutError:
            return b": still here\n\n"

"""The feed: a snapshot, what changed, and who is let go; over a real loopback socket too."""

from __future__ import annotations

import asyncio
import base64
import copy
import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from node.http import HttpServer, HttpSources
from node.metrics import Metrics
from node.page import routes
from node.page.feed import MAX_LISTENERS, MAX_QUEUED, Feed, FullError, Listener, difference
from tests.tools.clock import StepClock

VIEW: dict[str, Any] = {
    "now": 1.0,
    "run": {"step": 1},
    "curves": {"loss": [[1, 5.0]], "marks": []},
    "events": [{"serial": 1, "text": "a"}],
}


class Shown:
    """A page whose view is set by hand."""

    def __init__(self) -> None:
        self.now = copy.deepcopy(VIEW)
        self.feed = Feed(self.view, "boot")

    def view(self) -> dict[str, Any]:
        return self.now

    def step(self) -> None:
        """One step further, and told."""
        step = self.now["run"]["step"] + 1
        self.now = copy.deepcopy(self.now) | {"now": float(step), "run": {"step": step}}
        self.now["curves"]["loss"].append([step, 5.0 - step / 10])
        self.feed.refresh()


def message(data: bytes) -> tuple[str, str, dict[str, Any]]:
    fields = dict(line.split(": ", 1) for line in data.decode().strip().split("\n"))
    return fields["event"], fields["id"], json.loads(fields["data"])


async def heard(listener: Listener) -> tuple[str, str, dict[str, Any]]:
    data = await listener.next()
    assert data is not None
    return message(data)


async def test_a_listener_gets_a_snapshot_then_what_changed() -> None:
    page = Shown()
    listener = page.feed.listen()
    assert await heard(listener) == ("view", "boot-0", VIEW)
    page.feed.refresh()  # nothing is new
    page.step()
    event, number, told = await heard(listener)
    assert (event, number) == ("delta", "boot-1")
    assert told == {"now": 2.0, "run": {"step": 2}, "curves": {"loss": {"from": 1, "add": [[2, 4.8]]}}}


def test_curves_that_were_thinned_and_entries_that_take_the_place_of_others() -> None:
    after = copy.deepcopy(VIEW) | {"now": 2.0}
    after["curves"]["loss"] = [[2, 4.9], [3, 4.8]]
    after["events"] = [{"serial": 2, "text": "a", "count": 2, "replaces": 1}]
    told = difference(VIEW, after)
    assert told is not None
    assert told["curves"] == {"loss": {"from": 0, "add": [[2, 4.9], [3, 4.8]]}}
    assert told["events"] == after["events"]
    renamed = copy.deepcopy(VIEW)
    renamed["events"][0]["text"] = "b"
    assert difference(VIEW, renamed) == {"now": 1.0, "events": renamed["events"]}
    assert difference(VIEW, VIEW | {"now": 9.0}) is None, "time alone is no news"


async def test_who_comes_back_gets_what_it_missed_or_a_snapshot() -> None:
    page = Shown()
    page.feed.listen()
    for _ in range(3):
        page.step()
    back = page.feed.listen("boot-1")
    assert [(await heard(back))[1] for _ in range(2)] == ["boot-2", "boot-3"]
    for unknown in ("other-1", "boot-99", "boot-x", "", "boot-" + "9" * 99, "boot--1"):
        assert (await heard(page.feed.listen(unknown)))[:2] == ("view", "boot-3")
    for _ in range(100):
        page.step()
    assert (await heard(page.feed.listen("boot-1")))[0] == "view", "what it missed is no longer here"


def test_nobody_listens_nothing_is_looked_at() -> None:
    looked: list[int] = []

    def look() -> dict[str, Any]:
        looked.append(1)
        return VIEW

    feed = Feed(look, "boot")
    feed.refresh()
    assert not looked
    feed.leave(feed.listen())
    feed.refresh()
    assert len(looked) == 1


def test_listeners_are_bounded() -> None:
    page = Shown()
    here = [page.feed.listen() for _ in range(MAX_LISTENERS)]
    with pytest.raises(FullError):
        page.feed.listen()
    page.feed.leave(here[0])
    page.feed.listen()


async def test_one_that_does_not_read_is_let_go_and_the_others_stay() -> None:
    page = Shown()
    slow, quick = page.feed.listen(), page.feed.listen()
    await heard(quick)
    for _ in range(MAX_QUEUED + 1):
        page.step()
        await heard(quick)
    assert not slow.is_open
    assert await slow.next() is None
    assert await slow.next() is None, "it stays closed"
    assert page.feed.num_listeners == 1


# ---- over HTTP


@asynccontextmanager
async def published(page: Shown) -> AsyncIterator[HttpServer]:
    server = HttpServer.publish("127.0.0.1", 0, page)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(server.serve(), name="http")
        try:
            yield server
        finally:
            server.close()


async def opened(server: HttpServer, request: str, **headers: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = server.address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    writer.write(f"{request} HTTP/1.1\r\nHost: {server.address}\r\n{more}\r\n".encode())
    return reader, writer


async def head(server: HttpServer, request: str) -> tuple[int, dict[str, str], bytes]:
    reader, writer = await opened(server, request, Connection="close")
    answer = await reader.read()
    writer.close()
    top, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = top.decode().split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}, body


async def event_of(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, Any]]:
    """The next message of a chunked stream, which is one chunk."""
    while b"event:" not in (data := await reader.readuntil(b"\n\n")):
        pass
    return message(b"retry:" + data.partition(b"retry:")[2])


async def listeners(page: Shown, count: int) -> None:
    """Wait until there are so many."""
    while page.feed.num_listeners != count:  # noqa: ASYNC110 - who listens tells nobody
        await asyncio.sleep(0.001)


async def test_the_page_is_one_document_and_lets_nothing_else_in() -> None:
    async with published(Shown()) as server:
        code, headers, body = await head(server, "GET /")
    assert (code, headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    text = body.decode()
    for tag in ("script", "style"):
        [inline] = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        assert f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}'" in policy
    assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", text), "nothing of another host"
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|\son\w+=", text)


async def test_what_is_published_is_the_page_and_nothing_else() -> None:
    async with published(Shown()) as server:
        for path in ("/status", "/metrics", "/invite", "/debug/dump?stage=0", "/readyz", "/docs", "/openapi.json"):
            assert (await head(server, f"GET {path}"))[0] == 404, path
        assert (await head(server, "POST /order"))[0] == 404
        assert (await head(server, "POST /"))[0] == 405
        code, headers, body = await head(server, "GET /view")
    assert (code, json.loads(body), headers["cache-control"]) == (200, VIEW, "no-store")


async def test_changes_are_streamed_and_go_on_after_a_break() -> None:
    page = Shown()
    async with published(page) as server:
        reader, writer = await opened(server, "GET /feed")
        assert b"text/event-stream" in await reader.readuntil(b"\r\n\r\n")
        assert (await event_of(reader))[0] == "view"
        page.step()
        assert (await event_of(reader))[:2] == ("delta", "boot-1")
        writer.close()
        await listeners(page, 0)
        page.now = page.now | {"run": {"step": 9}}
        reader, writer = await opened(server, "GET /feed", Last_Event_ID="boot-1")
        await reader.readuntil(b"\r\n\r\n")
        assert (await event_of(reader))[2]["run"] == {"step": 9}
        writer.close()


async def test_one_too_many_is_told_so() -> None:
    page = Shown()
    for _ in range(MAX_LISTENERS):
        page.feed.listen()
    async with published(page) as server:
        code, headers, _ = await head(server, "GET /feed")
    assert (code, headers["retry-after"]) == (503, "10")


async def test_one_that_takes_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "WRITE_S", 0.2)
    monkeypatch.setattr(routes, "STILL_HERE_S", 0.01)
    page = Shown()
    page.now["run"]["text"] = "x" * 20_000_000
    async with published(page) as server:
        _, writer = await opened(server, "GET /feed")
        await listeners(page, 1)
        await listeners(page, 0)
        writer.transport.abort()


async def test_a_silent_feed_says_that_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "STILL_HERE_S", 0.01)
    async with published(Shown()) as server:
        reader, writer = await opened(server, "GET /feed")
        await reader.readuntil(b": still here\n\n")
        writer.close()


async def test_the_node_serves_the_page_beside_what_it_serves_anyhow() -> None:
    server = HttpServer.open("127.0.0.1", 0, HttpSources(lambda: {"phase": "waiting"}, Metrics(StepClock()), page=Shown()))
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(server.serve(), name="http")
        try:
            assert b"<!doctype html>" in (await head(server, "GET /"))[2]
            assert (await head(server, "GET /healthz"))[0] == 200
        finally:
            server.close()

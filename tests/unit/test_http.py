"""The HTTP side of a node, over a real loopback socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.numpy import load

from node.http import MAX_ORDER_BYTES, HttpServer, HttpSources, Weights
from node.metrics import Metrics
from node.ports import UnusableError
from tests.tools.clock import StepClock

STATUS: dict[str, Any] = {"phase": "waiting", "step": 3, "seats": [], "sentence": "stage 2 has no holder"}


def sources(**changes: Any) -> HttpSources:
    values: dict[str, Any] = {"status": lambda: STATUS, "metrics": Metrics(StepClock())}
    return HttpSources(**(values | changes))


@asynccontextmanager
async def serving(answers: HttpSources) -> AsyncIterator[HttpServer]:
    server = HttpServer.open("127.0.0.1", 0, answers)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(server.serve(), name="http")
        try:
            yield server
        finally:
            server.close()


async def ask(server: HttpServer, request: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    host, port = server.address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"{request} HTTP/1.1\r\nHost: {server.address}\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    top, _, content = answer.partition(b"\r\n\r\n")
    first, *lines = top.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        content = _unchunk(content)
    return int(first.split()[1]), headers, content


def _unchunk(data: bytes) -> bytes:
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        out, data = out + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return out


async def test_status_is_json_even_with_odd_numbers() -> None:
    status = STATUS | {"loss": math.nan, "view": [{"seen_s": math.inf}]}
    async with serving(sources(status=lambda: status)) as server:
        code, headers, body = await ask(server, "GET /status")
    assert code == 200
    assert headers["content-type"] == "application/json"
    assert json.loads(body) == STATUS | {"loss": None, "view": [{"seen_s": None}]}


async def test_ready_only_when_it_does_its_part() -> None:
    status = dict(STATUS)
    async with serving(sources(status=lambda: status)) as server:
        waiting = await ask(server, "GET /readyz")
        status |= {"phase": "training"}
        spare = await ask(server, "GET /readyz")
        status |= {"seats": [{"stage": 2, "role": "active"}]}
        ready = await ask(server, "GET /readyz")
        health = await ask(server, "GET /healthz")
    assert (waiting[0], waiting[2]) == (503, b"stage 2 has no holder\n")
    assert spare[0] == 503
    assert (ready[0], ready[2]) == (200, b"training, holds stage 2, step 3\n")
    assert health[0] == 200


async def test_metrics_in_prometheus_format() -> None:
    async with serving(sources()) as server:
        code, headers, body = await ask(server, "GET /metrics")
    assert code == 200
    assert headers["content-type"].startswith("text/plain; version=")
    assert b"\nregrow_step 3.0\n" in body


async def test_invite_and_what_is_absent() -> None:
    async with serving(sources(invite=lambda: "regrow1:abc")) as server:
        assert (await ask(server, "GET /invite"))[2] == b"regrow1:abc\n"
        assert [(await ask(server, path))[0] for path in ("GET /debug/dump?stage=1", "POST /order")] == [
            404,
            404,
        ]
        assert (await ask(server, "GET /nothing"))[0] == 404
        assert (await ask(server, "POST /status"))[0] == 405


async def test_dump_is_a_safetensors_file(tmp_path: Path) -> None:
    async def dump(stage: int) -> Weights:
        if stage != 1:
            raise UnusableError(2, f"this node does not hold stage {stage}")
        tensors = [("a.weight", (2, 2)), ("b.weight", (1,))]
        return Weights(tensors, struct.pack("<5f", 1, 2, 3, 4, 5), {"state_id": "s"})

    async with serving(sources(dump=dump)) as server:
        code, _, body = await ask(server, "GET /debug/dump?stage=1")
        other = await ask(server, "GET /debug/dump?stage=2")
        bad = await ask(server, "GET /debug/dump?stage=-1")
    assert code == 200
    assert {name: array.tolist() for name, array in load(body).items()} == {"a.weight": [[1, 2], [3, 4]], "b.weight": [5]}
    path = tmp_path / "f.safetensors"
    path.write_bytes(body)
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"state_id": "s"}
    assert (other[0], other[2]) == (404, b"this node does not hold stage 2\n")
    assert bad[0] == 400


async def test_orders_are_bounded_and_refused_with_a_reason() -> None:
    taken: list[bytes] = []

    def order(body: bytes) -> str:
        if b"bad" in body:
            raise ValueError("not signed by the organiser")
        taken.append(body)
        return "pause: obeyed"

    async with serving(sources(order=order)) as server:
        good = await ask(server, "POST /order", b'{"action":"pause"}')
        bad = await ask(server, "POST /order", b"bad")
        large = await ask(server, "POST /order", b"x" * (MAX_ORDER_BYTES + 1))
    assert (good[0], good[2]) == (200, b"pause: obeyed\n")
    assert (bad[0], bad[2]) == (403, b"not signed by the organiser\n")
    assert large[0] == 403
    assert taken == [b'{"action":"pause"}']


async def test_a_defect_in_an_answer_is_a_500_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def status() -> dict[str, Any]:
        raise KeyError("defect")

    async with serving(sources(status=status)) as server:
        assert (await ask(server, "GET /status"))[0] == 500
        assert (await ask(server, "GET /healthz"))[0] == 200
    assert "KeyError('defect')" in caplog.text


async def test_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnusableError, match=rf"127\.0\.0\.1:{port}.*in use.*--metrics") as raised:
            HttpServer.open("127.0.0.1", port, sources())
    assert raised.value.code == 2


@pytest.mark.parametrize(("host", "port"), [("999.1.1.1", 0), ("127.0.0.1", 70000), ("192.0.2.1", 0)])
def test_impossible_address_is_refused(host: str, port: int) -> None:
    with pytest.raises(UnusableError, match="--metrics"):
        HttpServer.open(host, port, sources())


async def test_closes_at_once_with_open_connections() -> None:
    """Idle and half-sent requests do not hold the node, and the port is free afterwards."""
    loop = asyncio.get_running_loop()
    async with serving(sources()) as server:
        host, port = server.address.rsplit(":", 1)
        clients = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        clients[0][1].write(b"GET /status HTTP/1.1\r\n")
        clients[1][1].write(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert (await clients[1][0].readline()).startswith(b"HTTP/1.1 200")
        began = loop.time()
    assert loop.time() - began < 1.0
    for reader, writer in clients:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
    HttpServer.open(host, int(port), sources())._socket.close()


async def test_cancelled_server_frees_the_port() -> None:
    server = HttpServer.open("127.0.0.1", 0, sources())
    task = asyncio.get_running_loop().create_task(server.serve())
    await ask(server, "GET /healthz")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    HttpServer.open("127.0.0.1", int(server.address.rsplit(":", 1)[1]), sources())._socket.close()

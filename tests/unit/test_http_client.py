"""Asking nodes: what comes back from a right one, a wrong one and nobody."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from node import http_client
from node.http import Weights
from node.ports import UnusableError
from tests.unit.test_http import STATUS, serving, sources


async def test_asks_a_node() -> None:
    async def dump(stage: int) -> Weights:
        return Weights([("a", (4,))], b"\0" * 16, {})

    async with serving(sources(invite=lambda: "regrow1:x", dump=dump)) as server:
        status = await asyncio.to_thread(http_client.status, server.address)
        invite = await asyncio.to_thread(http_client.get, server.address, "/invite")
        weights = await asyncio.to_thread(http_client.get, server.address, "/debug/dump?stage=1")
    assert status == STATUS
    assert invite == b"regrow1:x\n"
    assert weights.endswith(b"\0" * 16)


async def test_the_nodes_own_sentence_is_passed_on() -> None:
    def order(body: bytes) -> str:
        raise ValueError("not signed by the organiser")

    def send(address: str) -> bytes:
        return b"".join(http_client.stream(address, "/order", body=b"{}"))

    async with serving(sources(order=order)) as server:
        with pytest.raises(UnusableError, match="not signed by the organiser") as refused:
            await asyncio.to_thread(send, server.address)
        with pytest.raises(UnusableError, match="invites are not minted here") as absent:
            await asyncio.to_thread(http_client.get, server.address, "/invite")
    assert (refused.value.code, absent.value.code) == (4, 3)


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UnusableError, match=f"127.0.0.1:{port}.*refused") as raised:
        http_client.status(f"127.0.0.1:{port}")
    assert raised.value.code == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n<ht>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{",
        b"",
    ],
)
async def test_somebody_else_is_there(answer: bytes) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        with pytest.raises(UnusableError, match=f"{host}:{port}") as raised:
            await asyncio.to_thread(http_client.status, f"{host}:{port}")
    assert raised.value.code == 3


async def test_an_endless_answer_is_cut_off() -> None:
    endless: Any = {"x": "y" * 2000}
    async with serving(sources(status=lambda: endless)) as server:
        with pytest.raises(UnusableError, match="more than 1000 bytes"):
            await asyncio.to_thread(lambda: list(http_client.stream(server.address, "/status", limit=1000)))
        assert json.loads(await asyncio.to_thread(http_client.get, server.address, "/status")) == endless


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://127.0.0.1:9100/status", "127.0.0.1:9100"),
        (" 127.0.0.1:9100\n", "127.0.0.1:9100"),
        ("[::1]:80", "[::1]:80"),
        ("regrow1:AAAA", None),
        ("regrow1:", None),
        ("/ip4/127.0.0.1/tcp/1", None),
        ("", None),
    ],
)
def test_what_is_an_address(text: str, address: str | None) -> None:
    assert http_client.address_of(text) == address

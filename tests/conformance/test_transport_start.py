"""A transport whose start is cut short leaves nothing behind and makes no noise."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from node.payloads import HandlePool
from node.transport.config import TransportConfig
from node.transport.grpc_transport import GrpcTransport


@pytest.mark.parametrize("rounds", range(6))
async def test_cancelled_start(rounds: int, unused_tcp_port: int) -> None:
    """Cancelled after so many rounds of the loop, and then the same port is listened on again."""
    noise: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(context))
    config = TransportConfig("run", "peer", 1, listen=f"127.0.0.1:{unused_tcp_port}")

    async def start(group: asyncio.TaskGroup) -> None:
        transport = await GrpcTransport.start(config, HandlePool(), group, Random(0))
        try:
            await asyncio.Event().wait()
        finally:
            await transport.close()

    async with asyncio.TaskGroup() as group:
        starting = group.create_task(start(group))
        for _ in range(rounds):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        again = await GrpcTransport.start(config, HandlePool(), group, Random(0))
        await again.close()
    assert noise == []

"""A process with one listening transport, for tests that kill or stop it. Prints its address; takes payloads at `RATE`."""

from __future__ import annotations

import asyncio
import sys
from random import Random

from node.payloads import HandlePool
from node.transport.config import Hooks, TransportConfig
from node.transport.grpc_transport import GrpcTransport

RATE = 20e6


async def main(name: str) -> None:
    async def pace(num_bytes: int) -> None:
        await asyncio.sleep(num_bytes / RATE)

    async with asyncio.TaskGroup() as group:
        pool, config = HandlePool(), TransportConfig("run-1", name, 1)
        transport = await GrpcTransport.start(config, pool, group, Random(1), hooks=Hooks(pace=pace))
        transport.on_message(lambda peer, _, message: transport.send(peer, message))
        transport.on_payload(lambda _peer, _header, handle, _size: pool.release(handle))
        print(transport.address, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

"""A process with one listening transport, for tests that kill, stop or measure it. Prints its address; takes at `RATE`.

With a folder as second argument it speaks TLS with the identity in it, and everybody with a key is welcome.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random

from node.certificates import papers_of
from node.identity import load_or_create
from node.payloads import HandlePool
from node.transport.channel import Plaintext, Security
from node.transport.config import Hooks, TransportConfig
from node.transport.grpc_transport import GrpcTransport
from node.transport.tls import Tls

RATE = 20e6


async def anybody(_peer: str) -> bool:
    return True


async def main(name: str, folder: str = "") -> None:
    async def pace(num_bytes: int) -> None:
        await asyncio.sleep(num_bytes / RATE)

    security: Security = Tls(papers_of(load_or_create(Path(folder)).key), anybody) if folder else Plaintext()
    async with asyncio.TaskGroup() as group:
        pool, config = HandlePool(), TransportConfig("run-1", name, 1)
        hooks = Hooks(pace=pace)
        transport = await GrpcTransport.start(config, pool, group, Random(1), hooks=hooks, security=security)
        transport.on_message(lambda peer, _, message: transport.send(peer, message))
        transport.on_payload(lambda _peer, _header, handle, _size: pool.release(handle))
        print(transport.address, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""A default port that is taken gives way, one that was asked for does not."""

from __future__ import annotations

import asyncio
import socket

import pytest

from node.own_ports import at_port
from node.ports import UnusableError


async def listen(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise UnusableError(2, f"{port}: {error.strerror}") from None


def opened(port: int, is_default: bool, said: list[str]) -> int:
    with asyncio.run(at_port(listen, port, "--listen", is_default, said.append)) as server:
        found: int = server.getsockname()[1]
        return found


def test_a_port_that_is_free_and_one_that_is_not() -> None:
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        assert opened(taken, True, said) not in (0, taken)
        assert len(said) == 1
        assert f"port {taken} is taken" in said[0]
        assert "--listen" in said[0]
        with pytest.raises(UnusableError):
            opened(taken, False, said)
    assert opened(taken, True, said) == taken
    assert len(said) == 1


def test_other_troubles_are_not_hidden() -> None:
    async def unreachable(_: int) -> None:
        raise UnusableError(3, "nobody there")

    with pytest.raises(UnusableError, match="nobody"):
        asyncio.run(at_port(unreachable, 5, "--dht-port", True, lambda _: None))

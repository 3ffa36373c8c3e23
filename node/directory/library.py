"""hivemind, imported quietly, and the few places where its internals are touched (its version is pinned for them).

Its import warns, installs a coloured log handler and renames a log level; all of that is undone here. Its warnings go to our
logger in one line each, its debug and info output nowhere. It drops the tasks that it starts; here they get an owner:
`with owning(tasks):` around every call into it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import warnings
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import hivemind
    import hivemind.dht.node
    import hivemind.dht.protocol
    import hivemind.dht.traverse
    import hivemind.p2p.p2p_daemon
    import hivemind.p2p.p2p_daemon_bindings.control
    import pydantic.v1 as pydantic_v1
    from hivemind.dht import DHTNode
    from hivemind.dht.crypto import RSASignatureValidator
    from hivemind.dht.routing import DHTID
    from hivemind.dht.schema import BytesWithPublicKey, SchemaValidator
    from hivemind.dht.validation import CompositeValidator, DHTRecord
    from hivemind.p2p import P2P, PeerID
    from hivemind.p2p.p2p_daemon_bindings.p2pclient import Client
    from hivemind.p2p.p2p_daemon_bindings.utils import (
        P2PDaemonError,
        P2PHandlerError,
        raise_if_failed,
        read_pbmsg_safe,
        write_pbmsg,
    )
    from hivemind.utils import MSGPackSerializer
    from hivemind.utils.crypto import RSAPrivateKey
    from hivemind.utils.multiaddr import Multiaddr

__all__ = [
    "DHTID",
    "P2P",
    "BytesWithPublicKey",
    "CompositeValidator",
    "DHTNode",
    "DHTRecord",
    "MSGPackSerializer",
    "Multiaddr",
    "P2PDaemonError",
    "P2PHandlerError",
    "PeerID",
    "PingRequest",
    "RSAPrivateKey",
    "RSASignatureValidator",
    "SchemaValidator",
    "attach",
    "connect",
    "create_node",
    "end_tasks",
    "owning",
    "p2pd_path",
    "pydantic_v1",
]

PingRequest = hivemind.dht.protocol.dht_pb2.PingRequest
_messages = hivemind.p2p.p2p_daemon_bindings.control.p2pd_pb
_log = logging.getLogger("node.directory.hivemind")


class _OneLine(logging.Handler):
    """Passes hivemind's records on to our logger, without tracebacks."""

    def emit(self, record: logging.LogRecord) -> None:
        _log.log(record.levelno, "%s", record.getMessage().replace("\n", " ")[:500])


def _tame_logging() -> None:
    logging.addLevelName(logging.WARNING, "WARNING")
    theirs = logging.getLogger("hivemind")
    theirs.handlers = [_OneLine()]
    theirs.propagate = False
    theirs.setLevel(logging.WARNING)


_tame_logging()


# ---- tasks

_owner: ContextVar[set[asyncio.Task[Any]] | None] = ContextVar("owner of hivemind's tasks", default=None)


class _Asyncio:
    """asyncio as hivemind's modules see it: a task belongs to whoever called in, and so do the tasks that it starts."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    def create_task(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine, name=f"hivemind {getattr(coroutine, '__qualname__', '')}")
        tasks = _owner.get()
        if tasks is not None:
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            task.add_done_callback(_look_at)
        return task


def _look_at(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _log.debug("%s: %r", task.get_name(), error)


for _module in (
    hivemind.dht.node,
    hivemind.dht.protocol,
    hivemind.dht.traverse,
    hivemind.p2p.p2p_daemon,
    hivemind.p2p.p2p_daemon_bindings.control,
):
    _module.asyncio = _Asyncio()


@contextmanager
def owning(tasks: set[asyncio.Task[Any]]) -> Iterator[None]:
    """Tasks that hivemind starts inside the block, directly or later on, are in `tasks` until they are done."""
    token = _owner.set(tasks)
    try:
        yield
    finally:
        _owner.reset(token)


async def end_tasks(tasks: set[asyncio.Task[Any]], timeout_s: float = 3.0) -> None:
    """Cancel and await what is left of them."""
    while tasks:
        for task in tasks:
            task.cancel()
        _, pending = await asyncio.wait(set(tasks), timeout=timeout_s)
        if pending:
            _log.warning("%d tasks do not end: %s", len(pending), sorted(task.get_name() for task in pending))
            return


# ---- the daemon and the node


def p2pd_path() -> Path:
    """The daemon's binary, as shipped with hivemind."""
    return Path(hivemind.__file__).parent / "hivemind_cli" / "p2pd"


async def attach(socket: Path) -> Any:
    """A `P2P` on a running p2pd that somebody else owns.

    As `P2P.replicate`, except that nothing is awaited once tasks were started: a cancellation leaves none behind.
    """
    p2p = P2P()
    p2p._daemon_listen_maddr = Multiaddr(f"/unix{socket}")
    p2p._client_listen_maddr = Multiaddr(f"/unix{socket}.client")
    p2p._client = await Client.create(control_maddr=p2p._daemon_listen_maddr, listen_maddr=p2p._client_listen_maddr)
    p2p._alive = True
    return p2p


async def connect(p2p: Any, peer: Any, address: str) -> None:
    """Dial a peer. As the client's own `connect`, which leaves its socket open when cancelled."""
    reader, writer = await p2p._client.control.daemon_connector.open_connection()
    try:
        dial = _messages.ConnectRequest(peer=peer.to_bytes(), addrs=[Multiaddr(address).to_bytes()])
        await write_pbmsg(writer, _messages.Request(type=_messages.Request.CONNECT, connect=dial))
        response = _messages.Response()
        await read_pbmsg_safe(reader, response)
    finally:
        writer.close()
    raise_if_failed(response)


async def create_node(p2p: Any, validator: Any, node_id: Any) -> Any:
    """A `DHTNode` without caches, which would show old records and start tasks that nobody owns."""
    node = await DHTNode.create(
        p2p=p2p,
        node_id=node_id,
        record_validator=validator,
        cache_locally=False,
        cache_nearest=0,
        cache_on_store=False,
        cache_refresh_before_expiry=0,
        reuse_get_requests=False,
    )
    protocol = node.protocol

    def keep_valid(key: bytes, dictionary: Any) -> bool:
        """Instead of refusing all records of a key for the sake of a bad one, drop the bad one."""
        dictionary.maxsize = math.inf
        with dictionary.freeze():
            for subkey, (value, expires) in list(dictionary.items()):
                record = DHTRecord(key, MSGPackSerializer.dumps(subkey), value, expires)
                if not validator.validate(record):
                    del dictionary[subkey]
        return True

    protocol._validate_dictionary = keep_valid
    return node

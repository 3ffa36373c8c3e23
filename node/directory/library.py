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
from dataclasses import dataclass, field
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
    "Belongings",
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
    "end",
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


# ---- tasks and connections


@dataclass(slots=True)
class Belongings:
    """Tasks that hivemind started and dropped, and its connections to p2pd, which it leaves open where a call is cancelled."""

    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    writers: set[asyncio.StreamWriter] = field(default_factory=set)


_owner: ContextVar[Belongings | None] = ContextVar("owner of what hivemind starts and opens", default=None)


class _Asyncio:
    """asyncio as hivemind's modules see it: a task or connection belongs to whoever called in, and so does what it makes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    def create_task(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine, name=f"hivemind {getattr(coroutine, '__qualname__', '')}")
        owner = _owner.get()
        if owner is not None:
            owner.tasks.add(task)
            task.add_done_callback(owner.tasks.discard)
            task.add_done_callback(_look_at)
        return task

    @staticmethod
    async def open_unix_connection(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(path)
        owner = _owner.get()
        if owner is not None:
            owner.writers = {known for known in owner.writers if not known.transport.is_closing()} | {writer}
        return reader, writer


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
def owning(belongings: Belongings) -> Iterator[None]:
    """What hivemind starts or opens inside the block, directly or later on, is in `belongings` until it is done or closed."""
    token = _owner.set(belongings)
    try:
        yield
    finally:
        _owner.reset(token)


async def end(belongings: Belongings, timeout_s: float = 3.0) -> None:
    """Cancel and await the tasks that are left, then break the connections."""
    while belongings.tasks:
        for task in belongings.tasks:
            task.cancel()
        _, pending = await asyncio.wait(set(belongings.tasks), timeout=timeout_s)
        if pending:
            _log.warning("%d tasks do not end: %s", len(pending), sorted(task.get_name() for task in pending))
            break
    for writer in belongings.writers:
        writer.transport.abort()
    belongings.writers.clear()
    await asyncio.sleep(0)  # a broken connection closes its socket in the loop's next round


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

"""The HTTP side of a node: /metrics, /healthz, /readyz, /status, /invite, and on loopback /debug/dump.

It only shows; the one request that changes anything is POST /order, whose body the organiser signed. Runs
inside the node's event loop and leaves signals alone. Bound beyond loopback it shows the same to everybody; what is
safe to show to everybody, and nothing else, is served by `HttpServer.publish`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import uvicorn
from safetensors.numpy import save
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from node.metrics import Metrics
from node.page.routes import Shown, endpoints
from node.plain_json import finite
from node.ports import UnusableError

MAX_ORDER_BYTES = 4096
MAX_CONNECTIONS = 64
CHUNK_BYTES = 1 << 20
UNREAD_MS = 30_000
"""A connection whose other side takes nothing for so long is dropped by the kernel."""
READY_PHASES = frozenset({"training", "evaluating", "paused", "finished"})
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Weights:
    """f32 tensors, one after the other in `data` (little-endian), and what the file says of them."""

    tensors: list[tuple[str, tuple[int, ...]]]
    data: bytes | memoryview
    metadata: Mapping[str, str]

    def file(self) -> bytes:
        """As a safetensors file. Copies the data."""
        flat = np.frombuffer(self.data, "<f4")
        ends = [0, *accumulate(math.prod(shape) for _, shape in self.tensors)]
        assert ends[-1] == flat.size, f"{flat.size} elements for tensors of {ends[-1]}"
        arrays = {
            name: flat[first:end].reshape(shape)
            for (name, shape), (first, end) in zip(self.tensors, pairwise(ends), strict=True)
        }
        return save(arrays, dict(self.metadata))


@dataclass(frozen=True, slots=True)
class HttpSources:
    """Where the answers come from. What is None answers 404."""

    status: Callable[[], dict[str, Any]]
    """The object of /status; `sentence` in it says what the node waits for."""
    metrics: Metrics
    invite: Callable[[], str] | None = None
    """A fresh invite."""
    dump: Callable[[int], Awaitable[Weights]] | None = None
    """Weights of a stage as last committed. `UnusableError` where this node has no such seat."""
    order: Callable[[bytes], str] | None = None
    """Obey a signed order (JSON); returns a sentence. `ValueError` where it is not to be obeyed."""
    page: Shown | None = None
    """The status page."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals belong to the node."""
        yield


class HttpServer:
    """Bound by `open`, served by `serve` (a coroutine for the caller's TaskGroup), ended by `close`."""

    def __init__(self, sock: socket.socket, application: Starlette) -> None:
        self._socket = sock
        self._server = _Server(_uvicorn_config(application))
        host, port = sock.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        """HOST:PORT that was bound."""

    @classmethod
    def open(cls, host: str, port: int, sources: HttpSources) -> HttpServer:
        """Bind (port 0: any) and listen. Raises `UnusableError(2)` where the address cannot be had."""
        return cls(_bind("--metrics", host, port), _application(sources))

    @classmethod
    def publish(cls, host: str, port: int, page: Shown) -> HttpServer:
        """The same with nothing but the status page, which has no address, path or invite in it, and takes no order."""
        return cls(_bind("--publish", host, port), _published(page))

    @classmethod
    def of(cls, option: str, host: str, port: int, routes: Sequence[Route]) -> HttpServer:
        """The same for other pages; `option` is the one that names the address."""
        return cls(_bind(option, host, port), Starlette(routes=routes, exception_handlers={Exception: _our_fault}))

    async def serve(self) -> None:
        """Answer until `close` or cancellation; the port is free when this returns."""
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._abort()

    def close(self) -> None:
        """Stop listening; `serve` returns within a second."""
        self._server.should_exit = True

    def _abort(self) -> None:
        for server in getattr(self._server, "servers", ()):
            server.close()
        for connection in list(self._server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        self._socket.close()


def _bind(option: str, host: str, port: int) -> socket.socket:
    where = f"{host}:{port}"
    if not 0 <= port <= 65535:
        raise UnusableError(2, f"{option} {where}: a port is a number from 0 (any) to 65535")
    try:
        [(family, kind, proto, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        sock = socket.socket(family, kind, proto)
    except (OSError, UnicodeError) as error:
        raise UnusableError(2, f"{option} {where} is no address of this machine: {error}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)  # accepted ones inherit it
        sock.bind(address)
        sock.listen(MAX_CONNECTIONS)
    except OSError as error:
        sock.close()
        raise UnusableError(
            2, f"cannot serve HTTP on {where}: {error.strerror}; choose another port with {option} (0 = any)"
        ) from error
    sock.setblocking(False)
    return sock


def _uvicorn_config(app: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="none",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=0,
    )


def _application(sources: HttpSources) -> Starlette:
    pages = _Pages(sources)
    get = {
        **(endpoints(sources.page) if sources.page else {"/": pages.index}),
        "/metrics": pages.metrics,
        "/healthz": pages.healthz,
        "/readyz": pages.readyz,
        "/status": pages.status,
        "/invite": pages.invite,
        "/debug/dump": pages.dump,
    }
    routes = [Route(path, endpoint, methods=["GET"]) for path, endpoint in get.items()]
    routes.append(Route("/order", pages.order, methods=["POST"]))
    return Starlette(routes=routes, exception_handlers={Exception: _our_fault})


def _published(page: Shown) -> Starlette:
    routes = [Route(path, endpoint, methods=["GET"]) for path, endpoint in endpoints(page).items()]
    return Starlette(routes=routes, exception_handlers={Exception: _our_fault})


async def _our_fault(request: Request, error: Exception) -> Response:
    _log.error("HTTP %s failed: %r", request.url.path, error)
    return PlainTextResponse("internal error; the node's log says more\n", status_code=500)


class _Pages:
    """One method per path."""

    def __init__(self, sources: HttpSources) -> None:
        self._from = sources

    async def index(self, request: Request) -> Response:
        return PlainTextResponse("regrow node: /status /metrics /healthz /readyz /invite\n")

    async def metrics(self, request: Request) -> Response:
        accept = request.headers.get("accept", "")
        body, content_type = self._from.metrics.render(accept, self._from.status())
        return Response(body, headers={"content-type": content_type})

    async def healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        ready, sentence = readiness(self._from.status())
        return PlainTextResponse(sentence + "\n", status_code=200 if ready else 503)

    async def status(self, request: Request) -> Response:
        return JSONResponse(finite(self._from.status()), headers={"cache-control": "no-store"})

    async def invite(self, request: Request) -> Response:
        if self._from.invite is None:
            return _absent("invites are not minted here")
        try:
            token = self._from.invite()
        except UnusableError as error:
            return PlainTextResponse(f"{error}\n", status_code=503)
        return PlainTextResponse(token + "\n", headers={"cache-control": "no-store"})

    async def dump(self, request: Request) -> Response:
        if self._from.dump is None or not _is_local(request):
            return _absent("weights are dumped over loopback only")
        stage = request.query_params.get("stage", "")
        if not (stage.isascii() and stage.isdigit() and len(stage) < 4):
            return PlainTextResponse("stage must be a number: /debug/dump?stage=1\n", status_code=400)
        try:
            weights = await self._from.dump(int(stage))
        except UnusableError as error:
            return _absent(str(error))
        file = await asyncio.to_thread(weights.file)
        return StreamingResponse(_pieces(memoryview(file)), media_type="application/octet-stream")

    async def order(self, request: Request) -> Response:
        if self._from.order is None:
            return _absent("orders are not taken here")
        try:
            sentence = self._from.order(await _body(request, MAX_ORDER_BYTES))
        except ValueError as error:
            return PlainTextResponse(f"{error}\n", status_code=403)
        return PlainTextResponse(sentence + "\n")


def readiness(status: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether the node does its part, and the sentence that says so or what it waits for."""
    phase, seats = str(status.get("phase", "starting")), status.get("seats", ())
    sentence = str(status.get("sentence") or "")
    if phase not in READY_PHASES:
        return False, sentence or f"{phase}: not training yet"
    if not seats:
        return False, sentence or "this node holds no stage"
    stages = ", ".join(str(seat.get("stage")) for seat in seats)
    return True, f"{phase}, holds stage {stages}, step {status.get('step', 0)}"


async def _pieces(data: memoryview) -> AsyncIterator[memoryview]:
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


def _absent(sentence: str) -> Response:
    return PlainTextResponse(sentence + "\n", status_code=404)


def _is_local(request: Request) -> bool:
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


async def _body(request: Request, limit: int) -> bytes:
    """The body. Raises `ValueError` if it has more bytes or takes more than 5 s."""
    data = b""
    try:
        async with asyncio.timeout(5):
            async for chunk in request.stream():
                data += chunk
                if len(data) > limit:
                    raise ValueError(f"the order is larger than {limit} bytes")
    except TimeoutError:
        raise ValueError("the order did not arrive") from None
    return data

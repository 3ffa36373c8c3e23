"""The HTTP side of a monitor: the status page, /metrics, /sd, /status, /healthz, /node/PEER/metrics. It only shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from node.http import HttpServer
from node.monitor.metrics import MonitorMetrics
from node.page.routes import Shown, endpoints
from node.plain_json import finite

OPTION = "--listen"
_HOST = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:]{2,45}\]):[0-9]{1,5}")
_NO_STORE = {"cache-control": "no-store"}


@dataclass(frozen=True, slots=True)
class MonitorSources:
    """Where the answers come from."""

    metrics: MonitorMetrics
    status: Callable[[], Mapping[str, Any]]
    targets: Callable[[str], list[dict[str, Any]]]
    """By where whoever asks has reached the monitor, HOST:PORT."""
    node_text: Callable[[str], str | None]
    """Prometheus text of a node by its label; None where nothing is known of it now."""
    page: Shown | None = None
    """The status page."""


def open_server(host: str, port: int, sources: MonitorSources) -> HttpServer:
    """Bind and listen. Raises `UnusableError(2)` where the address cannot be had."""
    pages = _Pages(sources)
    get = {
        **(endpoints(sources.page) if sources.page else {"/": pages.index}),
        "/metrics": pages.metrics,
        "/sd": pages.sd,
        "/status": pages.status,
        "/healthz": pages.healthz,
        "/node/{peer}/metrics": pages.node,
    }
    pages.server = HttpServer.of(OPTION, host, port, [Route(path, page, methods=["GET"]) for path, page in get.items()])
    return pages.server


class _Pages:
    """One method per path."""

    server: HttpServer

    def __init__(self, sources: MonitorSources) -> None:
        self._from = sources

    async def index(self, request: Request) -> Response:
        return PlainTextResponse("regrow monitor: /status /metrics /sd /healthz\n")

    async def metrics(self, request: Request) -> Response:
        body, content_type = self._from.metrics.render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    async def sd(self, request: Request) -> Response:
        """Prometheus is told to come back the way it came: the Host that it named, where that is one."""
        host = request.headers.get("host", "")
        here = host if _HOST.fullmatch(host) else self.server.address
        return JSONResponse(self._from.targets(here), headers=_NO_STORE)

    async def status(self, request: Request) -> Response:
        return JSONResponse(finite(self._from.status()), headers=_NO_STORE)

    async def healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def node(self, request: Request) -> Response:
        text = self._from.node_text(request.path_params["peer"])
        if text is None:
            return PlainTextResponse("nothing is known of such a node now\n", status_code=404)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

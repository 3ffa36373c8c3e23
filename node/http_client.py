"""Asking a node over HTTP. Blocking; imports nothing slow. What comes back is a stranger's: sizes and times are bounded."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from node.plain_text import printable
from node.ports import UnusableError

UNREACHABLE, REFUSED = 3, 4
MAX_ANSWER_BYTES = 16 << 20
CHUNK_BYTES = 1 << 20
TIMEOUT_S = 5.0
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def get(address: str, path: str, timeout_s: float = TIMEOUT_S) -> bytes:
    """Body of a 200 answer. `UnusableError(3)` if there is none, with the node's own sentence where it gave one."""
    return b"".join(stream(address, path, timeout_s=timeout_s, limit=MAX_ANSWER_BYTES))


def status(address: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """The object of /status."""
    try:
        told = json.loads(get(address, "/status", timeout_s))
    except ValueError as error:
        raise UnusableError(UNREACHABLE, f"{address} does not answer like a regrow node: {error}") from None
    if not isinstance(told, dict):
        raise UnusableError(UNREACHABLE, f"{address} does not answer like a regrow node")
    return told


def stream(
    address: str,
    path: str,
    *,
    body: bytes | None = None,
    timeout_s: float = TIMEOUT_S,
    limit: int | None = None,
) -> Iterator[bytes]:
    """The body of a 200 answer in pieces; with `body` it is a POST."""
    request = urllib.request.Request(f"http://{address}{path}", data=body)
    try:
        with _open(request, timeout=timeout_s) as answer:
            size = 0
            while chunk := answer.read(CHUNK_BYTES):
                size += len(chunk)
                if limit is not None and size > limit:
                    raise UnusableError(UNREACHABLE, f"{address} sent more than {limit} bytes")
                yield chunk
    except urllib.error.HTTPError as error:
        sentence = printable(error.read(1000).decode(errors="replace").strip() or error.reason)
        raise UnusableError(REFUSED if error.code == 403 else UNREACHABLE, f"{address}: {sentence}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise UnusableError(UNREACHABLE, f"no node answers at http://{address}: {reason}") from None


def address_of(text: str) -> str | None:
    """HOST:PORT if the text is an HTTP address (with or without http://), else None."""
    text = text.strip()
    if text.startswith("http://"):
        return urllib.parse.urlsplit(text).netloc or None
    host, colon, port = text.rpartition(":")
    return text if colon and host and port.isdigit() and "/" not in text else None

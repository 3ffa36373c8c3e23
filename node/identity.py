"""Who this node is: its key, its incarnation, and the lock that keeps it the only one of that name on this machine.

The key is RSA in libp2p's protobuf envelope, so that p2pd loads the same file and the directory's signatures, and later the
streams' certificates, are bound to the same peer id. Errors are `UnusableError(2)`, one line naming the file and what to do;
a broken file is never replaced by a new identity.

Order at start: `StateLock.take`, `load_or_create`, `next_incarnation`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
)

from node.ports import Lease, UnusableError
from node.private_file import BAD_USE, broken, create_private, read_private, unusable
from node.state_store import DirectoryStore
from protocol.ids import PeerId

IDENTITY_FILE = "identity.key"
INCARNATION_FILE = "incarnation"
LOCK_FILE = "lock"
KEY_BITS = 2048
MAX_INCARNATION = 2**53
_RSA = b"\x08\x00"
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Identity:
    """A node's persistent key. `path` is readable by p2pd."""

    path: Path
    key: rsa.RSAPrivateKey
    peer: PeerId


def load_or_create(state_dir: Path) -> Identity:
    """The identity in the state directory; made when neither it nor anything of its name is there."""
    path = state_dir / IDENTITY_FILE
    if not os.path.lexists(path):
        _create(path)
    data = read_private(path, "identity")
    try:
        key = _parse(data)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise broken(path, "identity", "is truncated or no libp2p RSA key") from None
    return Identity(path, key, peer_id_of(key.public_key()))


def peer_id_of(key: rsa.RSAPublicKey) -> PeerId:
    """libp2p's peer id: base58 of the sha256 multihash of the key's protobuf envelope."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return _base58(b"\x12\x20" + hashlib.sha256(_envelope(der)).digest())


def next_incarnation(state_dir: Path) -> int:
    """The number of this start, greater than that of every earlier one, on disk when this returns."""
    path = state_dir / INCARNATION_FILE
    store = DirectoryStore(state_dir)
    data = store.read(INCARNATION_FILE)
    if data is None:
        raise broken(path, "incarnation", f"is missing beside {IDENTITY_FILE}")
    text = data[:32].decode("ascii", "replace").strip()
    if not text.isascii() or not text.isdigit() or not 0 <= int(text) < MAX_INCARNATION:
        raise UnusableError(
            BAD_USE,
            f"the incarnation file {path} is broken: write a number into it that is greater than "
            "any `incarnation` in this node's events.jsonl",
        )
    store.write(INCARNATION_FILE, f"{int(text) + 1}\n".encode())
    return int(text) + 1


class StateLock:
    """Held as long as this object is open (or this process alive): nobody else starts on the same state directory."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def take(cls, state_dir: Path) -> StateLock:
        """Makes the directory if missing. Refused while another process holds it."""
        path = state_dir / LOCK_FILE
        try:
            state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise unusable(path, error, "open the lock file") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(fd, 32).decode("ascii", "replace").strip()
            os.close(fd)
            if not isinstance(error, BlockingIOError):
                raise unusable(path, error, "lock") from None
            raise UnusableError(
                BAD_USE,
                f"{path} is held by process {holder or '?'}: a node already runs on this state directory; "
                "stop it or choose another --state-dir",
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return cls(fd)

    def close(self) -> None:
        """Let go. The file stays: removing it would let two newcomers lock two files of one name."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


async def find_double(leases: Iterable[Lease], own: Lease, answers: Callable[[Lease], Awaitable[bool]]) -> Lease | None:
    """The claim of another running node with our identity, if there is one.

    `leases`: what the directory held before we published `own`. A claim of our peer at another address, or of a higher
    incarnation, is such a node if `answers` (dial it; does it prove to be this peer?) says so; else it is what an earlier
    life of ours left behind.
    """
    for lease in leases:
        if lease.peer != own.peer or lease.leaving:
            continue
        elsewhere = lease.address != own.address
        if (elsewhere or lease.incarnation > own.incarnation) and await answers(lease):
            return lease
    return None


def double_start_error(identity: Identity, address: str) -> UnusableError:
    """The one line for another running node of the same identity, at HOST:PORT."""
    return UnusableError(
        BAD_USE,
        f"the identity {identity.path} is in use by a running node at {address}: stop that one, "
        "or give this node a state directory of its own (--state-dir)",
    )


def _create(path: Path) -> None:
    # The counter first: an identity without one must mean that somebody lost it.
    store = DirectoryStore(path.parent)
    if store.read(INCARNATION_FILE) is None:
        store.write(INCARNATION_FILE, b"0\n")
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    der = key.private_bytes(Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    create_private(path, _envelope(der), "identity")


def _envelope(der: bytes) -> bytes:
    """libp2p's `message Key { KeyType type = 1; bytes data = 2; }` with type RSA."""
    return _RSA + b"\x12" + _varint(len(der)) + der


def _parse(data: bytes) -> rsa.RSAPrivateKey:
    if data[:3] != _RSA + b"\x12":
        raise ValueError("not an RSA key envelope")
    size, shift, at = 0, 0, 3
    while True:
        if at >= len(data) or shift > 21:
            raise ValueError("no length")
        size |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            break
    if len(data) != at + size:
        raise ValueError("wrong length")
    key = load_der_private_key(data[at:], password=None)
    if not isinstance(key, rsa.RSAPrivateKey) or key.key_size < KEY_BITS:
        raise ValueError("not an RSA key of at least 2048 bits")
    return key


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _base58(data: bytes) -> str:
    number, text = int.from_bytes(data), ""
    while number:
        number, digit = divmod(number, 58)
        text = _BASE58[digit] + text
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + text

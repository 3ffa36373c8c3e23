"""The invite: all that a newcomer needs, in one token to copy and paste.

`regrow1:` + url-safe base64 without padding of

    length   u16   number of bytes from here to the checksum, this field excluded
    version  u16   protocol version
    digest   32 bytes   sha256 of the canonical manifest
    organiser  u8 (0 or 32) + so many bytes   Ed25519 public key
    name     u8 + UTF-8   slug of the run
    addresses  u8 count, each u16 + UTF-8   multiaddresses of directory peers
    checksum u32   crc32 of all before it

all big-endian. A crc32 finds every change of a single character for certain. Length, checksum and version keep their
places in later versions, so that an old program can say what is wrong. Errors are `ValueError` with one line.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
import zlib
from dataclasses import dataclass

from protocol.addresses import check_announce, parse_multiaddress
from protocol.version import PROTOCOL_VERSION

PREFIX = "regrow1:"
MAX_ADDRESSES = 3
_ASK = "ask for a new one (`regrow invite` on any node of the run)"
_LENGTH, _CHECKSUM = 2, 4
_ALPHABET = re.compile(r"[A-Za-z0-9_-]*")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")


@dataclass(frozen=True, slots=True)
class Invite:
    """`addresses` end in /p2p/PEER, at most three; `manifest_digest` and `organiser` are 64 hex digits ('' = no key)."""

    addresses: tuple[str, ...]
    manifest_digest: str
    name: str
    organiser: str
    protocol_version: int = PROTOCOL_VERSION

    @property
    def run_id(self) -> str:
        """As `Manifest.run_id`."""
        return f"{self.name}-{self.manifest_digest[:16]}"


def mint(invite: Invite) -> str:
    """The token. Addresses that nobody could dial are a `ValueError` naming --announce."""
    for address in invite.addresses:
        check_announce(address)
    _check(invite)
    body = b"".join(_fields(invite))
    data = struct.pack(">H", len(body)) + body
    data += struct.pack(">I", zlib.crc32(data))
    return PREFIX + _encode(data)


def parse(token: str) -> Invite:
    """The invite in a token. Blanks and line breaks, as pasting adds them, are ignored."""
    token = "".join(token.split())
    if not token.startswith(PREFIX):
        raise ValueError(f"this is no invite: it does not start with {PREFIX!r} but with {token[:12]!r}")
    body = _checked_body(token.removeprefix(PREFIX))
    (version,) = struct.unpack_from(">H", body)
    if version != PROTOCOL_VERSION:
        raise ValueError(
            f"the invite is for protocol version {version}, this program speaks {PROTOCOL_VERSION}: "
            "install the version of regrow that the run uses"
        )
    try:
        invite = _unpack(body)
        _check(invite)
    except (ValueError, IndexError, struct.error) as error:
        raise ValueError(f"the invite's contents are wrong ({error}): {_ASK}") from None
    return invite


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _checked_body(text: str) -> bytes:
    """The bytes between length and checksum."""
    wrong = f"the invite is mistyped: its checksum does not match; copy it again or {_ASK}"
    if not _ALPHABET.fullmatch(text):
        raise ValueError(f"the invite is mistyped: {_first_foreign(text)!r} does not occur in invites; copy it again")
    short = f"the invite is truncated after {len(text)} characters: copy all of it or {_ASK}"
    if len(text) % 4 == 1 or len(text) < 8:
        raise ValueError(short)
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise ValueError(wrong) from None
    (length,) = struct.unpack_from(">H", data)
    if len(data) < _LENGTH + length + _CHECKSUM:
        raise ValueError(short)
    (checksum,) = struct.unpack_from(">I", data, len(data) - _CHECKSUM)
    # The last character has bits that no byte takes: re-encoding notices when they were changed.
    exact = len(data) == _LENGTH + length + _CHECKSUM and _encode(data) == text and length >= 2
    if not exact or checksum != zlib.crc32(data[:-_CHECKSUM]):
        raise ValueError(wrong)
    return data[_LENGTH:-_CHECKSUM]


def _first_foreign(text: str) -> str:
    return re.sub(r"[A-Za-z0-9_-]", "", text)[:1]


def _fields(invite: Invite) -> list[bytes]:
    organiser, name = bytes.fromhex(invite.organiser), invite.name.encode()
    fields = [
        struct.pack(">H", invite.protocol_version),
        bytes.fromhex(invite.manifest_digest),
        struct.pack(">B", len(organiser)) + organiser,
        struct.pack(">B", len(name)) + name,
        struct.pack(">B", len(invite.addresses)),
    ]
    addresses = [address.encode() for address in invite.addresses]
    return fields + [struct.pack(">H", len(address)) + address for address in addresses]


def _unpack(body: bytes) -> Invite:
    version, digest = struct.unpack_from(">H32s", body)
    organiser, at = _sized(">B", body, 34)
    name, at = _sized(">B", body, at)
    addresses, (count, at) = [], (body[at], at + 1)
    for _ in range(min(count, MAX_ADDRESSES)):
        address, at = _sized(">H", body, at)
        addresses.append(address.decode())
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes too many")
    return Invite(tuple(addresses), digest.hex(), name.decode(), organiser.hex(), version)


def _sized(form: str, body: bytes, at: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from(form, body, at)
    start = at + struct.calcsize(form)
    return body[start : start + size], start + size


def _check(invite: Invite) -> None:
    if not 1 <= len(invite.addresses) <= MAX_ADDRESSES:
        raise ValueError(f"{len(invite.addresses)} addresses, not 1 to {MAX_ADDRESSES}")
    for address in invite.addresses:
        if not parse_multiaddress(address).peer:
            raise ValueError(f"address {address!r} does not end in /p2p/ and a peer id")
    if not _NAME.fullmatch(invite.name):
        raise ValueError(f"{invite.name!r} is not the name of a run")
    if not re.fullmatch(r"[0-9a-f]{64}", invite.manifest_digest):
        raise ValueError(f"{invite.manifest_digest!r} is not a manifest digest")
    if not re.fullmatch(r"([0-9a-f]{64})?", invite.organiser):
        raise ValueError(f"{invite.organiser!r} is not a public key")

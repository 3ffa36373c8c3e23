"""Ids as bytes. Peers, addresses and record ids are told in full once per stream, and then by number.

An id is one of these, and each text has only one form that is accepted:

    0x00, its size as a varint, utf-8       any text that has none of the next forms
    0x01, 16 bytes                          32 lower-case hexadecimal digits: record, state_id
    0x02, 32 bytes                          64 lower-case hexadecimal digits: digest
    0x03, 32 bytes                          a peer id: base58 of 0x12, 0x20 and the 32 bytes
    0x04, 4 bytes, 2 bytes (big-endian)     IPV4:PORT
    0x05, 8 bytes                           16 lower-case hexadecimal digits: short digest
    0x10..0x2f                              the hash at slot 0..31 of the stream
    0x30..0xef                              the name at slot 0..191 of the stream
    0xf0..0xf7, 1 byte                      the name at slot 192..2047

A *name* is an id that comes again and again: peers and addresses do for as long as the run has them, records (hashes) for a
while. Both ends of a stream keep the newest 32 hashes and the newest 2048 other names that were told in full on it: the n-th is
at slot n modulo 32 or 2048, so that step after step drives no peer from its slot. A reference to an empty slot, or a name told
in full that has a slot, is refused; a new stream begins with empty slots, so nobody misses what was lost with a connection.

Memory: a name has at most 64 bytes and costs some 250 with its slot, so one direction of a stream never takes more than 0.5 MB,
whatever a stranger tells. What a swarm's coordinator tells each member are the peers and addresses of the swarm: of a thousand
nodes some 0.2 MB per stream, for the texts are shared.
"""

from __future__ import annotations

import re
from functools import lru_cache

from node.transport.bits import size_bytes, take_size
from node.transport.checks import MAX_STRING_CHARS, MAX_TUPLE_ITEMS, WireError

SLOTS, HASH_SLOTS = 2048, 32
MAX_NAME_CHARS = 64
"""What is longer, or not ASCII, is told in full each time."""

_TEXT, _HASH, _DIGEST, _PEER, _ADDRESS, _SHORT = range(6)
_SIZES = {_HASH: 16, _DIGEST: 32, _PEER: 32, _ADDRESS: 6, _SHORT: 8}
_OF_DIGITS = {16: _SHORT, 32: _HASH, 64: _DIGEST}
_FIRST_HASH_SLOT, _FIRST_SLOT, _FIRST_LONG_SLOT = 0x10, 0x30, 0xF0
_NUM_SHORT = _FIRST_LONG_SLOT - _FIRST_SLOT
_HEX = re.compile("[0-9a-f]+")
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}:(?:0|[1-9][0-9]{{0,4}})", re.ASCII)
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_DIGIT_OF = {digit: value for value, digit in enumerate(_BASE58)}
_PEER_CHARS = 46


class Ring:
    """The newest names of one kind, at so many slots."""

    def __init__(self, size: int) -> None:
        self.slot_of: dict[str, int] = {}
        self._size = size
        self._slots: list[str] = []
        self._oldest = 0

    def at(self, slot: int) -> str:
        """Raises `WireError` for a slot in which nothing is."""
        if slot >= len(self._slots):
            raise WireError("value", f"it refers to name {slot} of {len(self._slots)}")
        return self._slots[slot]

    def told(self, name: str) -> None:
        """It was told in full and takes the next slot. Raises `WireError` if it has one."""
        if name in self.slot_of:
            raise WireError("value", f"it tells the name {name[:40]!r} again")
        if len(self._slots) < self._size:
            self._slots.append(name)
            self.slot_of[name] = len(self._slots) - 1
            return
        slot, self._oldest = self._oldest, (self._oldest + 1) % self._size
        del self.slot_of[self._slots[slot]]
        self._slots[slot], self.slot_of[name] = name, slot


class Names:
    """The names of one direction of one stream, as one of its ends knows them."""

    def __init__(self) -> None:
        self.hashes, self.others = Ring(HASH_SLOTS), Ring(SLOTS)

    def told(self, name: str, kind: int) -> None:
        """It was told in full, as an id of this kind. Raises `WireError` if that was not needed."""
        if kind == _HASH:
            self.hashes.told(name)
        elif len(name) <= MAX_NAME_CHARS and name.isascii():
            self.others.told(name)


# ---- ids


def put_id(text: str, names: Names | None) -> bytes:
    """An id as bytes; with `names` as a name of that stream."""
    if names is None:
        return _literal(text)
    if (slot := names.hashes.slot_of.get(text)) is not None:
        return bytes([_FIRST_HASH_SLOT + slot])
    slot = names.others.slot_of.get(text)
    if slot is None:
        literal = _literal(text)
        names.told(text, literal[0])
        return literal
    if slot < _NUM_SHORT:
        return bytes([_FIRST_SLOT + slot])
    rest = slot - _NUM_SHORT
    return bytes([_FIRST_LONG_SLOT + (rest >> 8), rest & 0xFF])


def take_id(data: bytes, at: int, names: Names | None) -> tuple[str, int]:
    """(the id at this place, index behind it). Raises `WireError`."""
    if at >= len(data):
        raise WireError("value", "an id is missing")
    kind = data[at]
    if kind >= _FIRST_HASH_SLOT:
        return _referred(data, at, names)
    if kind == _TEXT:
        text, after = _take_text(data, at + 1)
    else:
        after = at + 1 + _SIZES.get(kind, len(data))
        if after > len(data):
            raise WireError("value", f"an id of kind {kind} in {len(data) - at} bytes")
        text = _text_of(kind, data[at + 1 : after])
    if names is not None:
        names.told(text, kind)
    return text, after


def _referred(data: bytes, at: int, names: Names | None) -> tuple[str, int]:
    if names is None:
        raise WireError("value", "it refers to a name where none are told")
    if data[at] < _FIRST_SLOT:
        return names.hashes.at(data[at] - _FIRST_HASH_SLOT), at + 1
    if data[at] < _FIRST_LONG_SLOT:
        return names.others.at(data[at] - _FIRST_SLOT), at + 1
    if at + 1 >= len(data):
        raise WireError("value", "a name's number is cut off")
    return names.others.at(_NUM_SHORT + ((data[at] - _FIRST_LONG_SLOT) << 8) + data[at + 1]), at + 2


def _take_text(data: bytes, at: int) -> tuple[str, int]:
    size, at = take_size(data, at)
    if size > len(data) - at:
        raise WireError("value", "a text is cut off")
    try:
        text = data[at : at + size].decode()
    except UnicodeDecodeError:
        raise WireError("value", "a text that is no utf-8") from None
    if len(text) > MAX_STRING_CHARS:
        raise WireError("value", f"an id is not a string of at most {MAX_STRING_CHARS} characters")
    if _literal(text)[0] != _TEXT:
        raise WireError("value", f"{text[:40]!r} has a shorter form")
    return text, at + size


def _literal(text: str) -> bytes:
    return _short_literal(text) if len(text) <= MAX_NAME_CHARS else _plain(text)


@lru_cache(maxsize=4096)
def _short_literal(text: str) -> bytes:
    """Of what is short enough to be kept: a stranger's long texts are not."""
    if len(text) == _PEER_CHARS and (raw := _peer_bytes(text)):
        return bytes([_PEER]) + raw
    if len(text) in _OF_DIGITS and _HEX.fullmatch(text):
        return bytes([_OF_DIGITS[len(text)]]) + bytes.fromhex(text)
    if len(text) <= 21 and _IPV4.fullmatch(text):
        host, _, port = text.rpartition(":")
        if int(port) < 1 << 16:
            return bytes([_ADDRESS, *map(int, host.split("."))]) + int(port).to_bytes(2, "big")
    return _plain(text)


def _plain(text: str) -> bytes:
    data = text.encode()
    return bytes([_TEXT]) + size_bytes(len(data)) + data


@lru_cache(maxsize=4096)
def _text_of(kind: int, raw: bytes) -> str:
    if kind == _ADDRESS:
        return ".".join(map(str, raw[:4])) + f":{int.from_bytes(raw[4:], 'big')}"
    return peer_id(raw) if kind == _PEER else raw.hex()


def peer_id(raw: bytes) -> str:
    """Base58 of the multihash that these 32 bytes, a sha256, make."""
    value, digits = int.from_bytes(b"\x12\x20" + raw, "big"), ""
    while value:
        value, digit = divmod(value, 58)
        digits = _BASE58[digit] + digits
    return digits


def _peer_bytes(text: str) -> bytes:
    """The 32 bytes of a peer id; b'' for any other text."""
    value = 0
    for char in text:
        digit = _DIGIT_OF.get(char)
        if digit is None:
            return b""
        value = value * 58 + digit
    data = value.to_bytes(35, "big")
    return data[3:] if data[:3] == b"\x00\x12\x20" else b""


def put_ids(ids: tuple[str, ...], names: Names | None) -> bytes:
    """Ids behind one another."""
    return b"".join(put_id(text, names) for text in ids)


def take_ids(data: bytes, names: Names | None) -> tuple[str, ...]:
    """All ids in the bytes. Raises `WireError`."""
    ids: list[str] = []
    at = 0
    while at < len(data):
        text, at = take_id(data, at, names)
        ids.append(text)
        if len(ids) > MAX_TUPLE_ITEMS:
            raise WireError("value", f"more than {MAX_TUPLE_ITEMS} ids")
    return tuple(ids)

"""Ids and sets of microbatches as bytes. Peers, addresses and record ids are told in full once per stream, and then by number.

An id is one of these, and each text has only one form that is accepted:

    0x00, its size as a varint, utf-8       any text that has none of the next forms
    0x01, 16 bytes                          32 lower-case hexadecimal digits: record, state_id
    0x02, 32 bytes                          64 lower-case hexadecimal digits: digest
    0x03, 32 bytes                          a peer id: base58 of 0x12, 0x20 and the 32 bytes
    0x04, 4 bytes, 2 bytes (big-endian)     IPV4:PORT
    0x05, 8 bytes                           16 lower-case hexadecimal digits: short digest
    0x10..0xef                              the name at slot 0..223 of the stream
    0xf0..0xff, 1 byte                      the name at slot 224..511

A *name* is an id that comes again and again. Both ends of a stream keep the newest 512 names that were told in full on it: the
n-th of them is at slot n modulo 512. A reference to an empty slot, or a name told in full that has a slot, is refused; a new
stream begins with empty slots, so what was lost with a connection is missed by nobody.
"""

from __future__ import annotations

import re
from functools import lru_cache

from node.transport.checks import MAX_STRING_CHARS, MAX_TUPLE_ITEMS, WireError

SLOTS = 512
MAX_NAME_CHARS = 128
"""What is longer is told in full each time."""

_TEXT, _HASH, _DIGEST, _PEER, _ADDRESS, _SHORT = range(6)
_SIZES = {_HASH: 16, _DIGEST: 32, _PEER: 32, _ADDRESS: 6, _SHORT: 8}
_OF_DIGITS = {16: _SHORT, 32: _HASH, 64: _DIGEST}
_FIRST_SLOT, _FIRST_LONG_SLOT = 0x10, 0xF0
_NUM_SHORT = _FIRST_LONG_SLOT - _FIRST_SLOT
_HEX = re.compile("[0-9a-f]+")
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}:(?:0|[1-9][0-9]{{0,4}})", re.ASCII)
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_DIGIT_OF = {digit: value for value, digit in enumerate(_BASE58)}
_PEER_CHARS = 46


class Names:
    """The names of one direction of one stream, as one of its ends knows them."""

    def __init__(self) -> None:
        self._slots: list[str] = []
        self._slot_of: dict[str, int] = {}
        self._oldest = 0

    def slot_of(self, name: str) -> int | None:
        """Where it is; None if it has to be told in full."""
        return self._slot_of.get(name)

    def at(self, slot: int) -> str:
        """Raises `WireError` for a slot in which nothing is."""
        if slot >= len(self._slots):
            raise WireError("value", f"it refers to name {slot} of {len(self._slots)}")
        return self._slots[slot]

    def told(self, name: str) -> None:
        """It was told in full and takes the next slot. Raises `WireError` if it has one."""
        if len(name) > MAX_NAME_CHARS:
            return
        if name in self._slot_of:
            raise WireError("value", f"it tells the name {name[:40]!r} again")
        if len(self._slots) < SLOTS:
            self._slots.append(name)
            self._slot_of[name] = len(self._slots) - 1
            return
        slot, self._oldest = self._oldest, (self._oldest + 1) % SLOTS
        del self._slot_of[self._slots[slot]]
        self._slots[slot], self._slot_of[name] = name, slot


# ---- ids


def put_id(text: str, names: Names | None) -> bytes:
    """An id as bytes; with `names` as a name of that stream."""
    slot = names.slot_of(text) if names else None
    if slot is None:
        literal = _literal(text)
        if names is not None:
            names.told(text)
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
    if kind >= _FIRST_SLOT:
        return _referred(data, at, names)
    if kind == _TEXT:
        text, after = _take_text(data, at + 1)
    else:
        after = at + 1 + _SIZES.get(kind, len(data))
        if after > len(data):
            raise WireError("value", f"an id of kind {kind} in {len(data) - at} bytes")
        text = _text_of(kind, data[at + 1 : after])
    if names is not None:
        names.told(text)
    return text, after


def _referred(data: bytes, at: int, names: Names | None) -> tuple[str, int]:
    if names is None:
        raise WireError("value", "it refers to a name where none are told")
    if data[at] < _FIRST_LONG_SLOT:
        return names.at(data[at] - _FIRST_SLOT), at + 1
    if at + 1 >= len(data):
        raise WireError("value", "a name's number is cut off")
    return names.at(_NUM_SHORT + ((data[at] - _FIRST_LONG_SLOT) << 8) + data[at + 1]), at + 2


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


# ---- sets of microbatches


def put_bits(bitmap: str) -> bytes:
    """A bitmap in hexadecimal as bytes: 0x00 and the integer, big-endian, or 0x01 and for each member its distance from the one
    before as a varint, whichever is shorter. Nothing for the empty set."""
    value = int(bitmap, 16)
    if not value:
        return b""
    raw = b"\x00" + value.to_bytes((value.bit_length() + 7) // 8, "big")
    if value.bit_count() >= len(raw) - 1:
        return raw
    sparse, last = bytearray(b"\x01"), 0
    while value:
        low = value & -value
        sparse += size_bytes(low.bit_length() - last)
        last, value = low.bit_length(), value ^ low
    return bytes(sparse) if len(sparse) < len(raw) else raw


def take_bits(data: bytes) -> str:
    """The bitmap in these bytes. Raises `WireError` for a set that is too large, and for one in another form than `put_bits`
    gives it."""
    bitmap, value = "0", 0
    if len(data) > 1 + MAX_BITS // 8:
        raise WireError("value", f"a set of microbatches in {len(data)} bytes")
    if data[:1] == b"\x00":
        value = int.from_bytes(data[1:], "big")
    elif data[:1] == b"\x01":
        at, last = 1, 0
        while at < len(data):
            step, at = take_size(data, at)
            last += step
            if not step or last > MAX_BITS:
                raise WireError("value", f"a set of microbatches with number {last - 1}")
            value |= 1 << (last - 1)
    bitmap = f"{value:x}"
    if put_bits(bitmap) != data:
        raise WireError("value", "a set of microbatches in another form than it has")
    return bitmap


MAX_BITS = 4096
"""Of a bitmap: 1024 hexadecimal digits."""


def put_rows(bitmaps: tuple[str, ...]) -> bytes:
    """Bitmaps behind one another, each after its size."""
    rows = [put_bits(bitmap) for bitmap in bitmaps]
    return b"".join(size_bytes(len(row)) + row for row in rows)


def take_rows(data: bytes) -> tuple[str, ...]:
    """All bitmaps in the bytes. Raises `WireError`."""
    rows: list[str] = []
    at = 0
    while at < len(data):
        size, at = take_size(data, at)
        if size > len(data) - at or len(rows) >= MAX_TUPLE_ITEMS:
            raise WireError("value", f"bitmap {len(rows)} is cut off, or there are too many")
        rows.append(take_bits(data[at : at + size]))
        at += size
    return tuple(rows)


# ---- sizes


def size_bytes(value: int) -> bytes:
    """A varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def take_size(data: bytes, at: int) -> tuple[int, int]:
    """(a varint of at most 3 bytes in its shortest form, index behind it). Raises `WireError`."""
    value = 0
    for shift in (0, 7, 14):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift and not byte:
                break
            return value, at
    raise WireError("value", "a size that is cut off, too large or longer than it needs to be")

"""Sets of microbatches, and who owns which, as bytes; each has one form that is accepted. Errors: `WireError`."""

from __future__ import annotations

from node.transport.checks import MAX_MICROBATCHES, MAX_TUPLE_ITEMS, WireError

MAX_PLACE_BITS = (MAX_TUPLE_ITEMS - 1).bit_length()
MAX_SIZE_BYTES = 3


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
    if len(data) > 1 + MAX_MICROBATCHES // 8:
        raise WireError("value", f"a set of microbatches in {len(data)} bytes")
    if data[:1] == b"\x00":
        value = int.from_bytes(data[1:], "big")
    elif data[:1] == b"\x01":
        at, last = 1, 0
        while at < len(data):
            step, at = take_size(data, at)
            last += step
            if not step or last > MAX_MICROBATCHES:
                raise WireError("value", f"a set of microbatches with number {last - 1}")
            value |= 1 << (last - 1)
    bitmap = f"{value:x}"
    if put_bits(bitmap) != data:
        raise WireError("value", "a set of microbatches in another form than it has")
    return bitmap


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


# ---- owners


def put_places(places: tuple[int, ...]) -> bytes:
    """Places among replicas, one per microbatch, as `checks` lets them pass: how many, bits of each, and all of them packed,
    the first one lowest. Nothing for none."""
    if not places:
        return b""
    width, value = max(places).bit_length(), 0
    for place in reversed(places):
        value = value << width | place
    return size_bytes(len(places)) + bytes([width]) + value.to_bytes((len(places) * width + 7) // 8, "little")


def take_places(data: bytes) -> tuple[int, ...]:
    """The numbers in these bytes. Raises `WireError` for more than there may be, and for another form than `put_places` gives
    them."""
    if not data:
        return ()
    size, at = take_size(data, 0)
    width = data[at] if at < len(data) else MAX_PLACE_BITS + 1
    if not 0 < size <= MAX_MICROBATCHES or width > MAX_PLACE_BITS or len(data) != at + 1 + (size * width + 7) // 8:
        raise WireError("value", f"{size} places in {len(data)} bytes")
    value, mask = int.from_bytes(data[at + 1 :], "little"), (1 << width) - 1
    places = tuple([value >> index * width & mask for index in range(size)])
    if put_places(places) != data:
        raise WireError("value", "places in another form than they have")
    return places


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
    found = take_varint(data, at, MAX_SIZE_BYTES, shortest=True)
    if found is None:
        raise WireError("value", "a size that is cut off, too large or longer than it needs to be")
    return found


def take_varint(data: bytes, at: int, max_bytes: int, shortest: bool = False) -> tuple[int, int] | None:
    """(the varint at this index, index behind it); None where none of at most `max_bytes` is whole, or where it is longer than
    it needs to be and only the `shortest` form will do."""
    value = 0
    for index in range(at, min(at + max_bytes, len(data))):
        byte = data[index]
        value |= (byte & 0x7F) << 7 * (index - at)
        if byte < 0x80:
            return None if shortest and index > at and not byte else (value, index + 1)
    return None

"""Dataclasses to protobuf and back, generic over their fields; proto/swarm.proto has one message per class.

What a field is in proto/swarm.proto says how it is written: a text as `bytes` is an id or a bitmap (`node.transport.names`), a
list of ids as `bytes` all of them, a list of dataclasses as one message its columns (`node.transport.rows`), a word as an enum
its value. Everything that is decoded has passed `checks.check`. Errors: `WireError`.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Pb

from node.transport import rows, swarm_pb2
from node.transport.bits import put_bits, put_places, take_bits, take_places
from node.transport.checks import WireError, check, field_types, optional_of, union_classes
from node.transport.names import Names, put_id, put_ids, take_id, take_ids
from protocol.messages import Message, PayloadHeader
from protocol.records import Record

T = TypeVar("T")
Write = Callable[[Any, Any, Names | None], None]
"""(protobuf message, value, names of the stream)"""
Read = Callable[[Any, Names | None], Any]

UNION_MESSAGES: dict[Any, str] = {Message: "Envelope", PayloadHeader: "Header", Record: "Record"}
"""Unions and the protobuf message that holds one of their classes in a oneof called `kind`."""
_SCALARS = (str, int, float, bool)


def to_pb(value: Any) -> Pb:
    """The protobuf message of a dataclass."""
    check(value)
    pb: Pb = _pb_class(type(value).__name__)()
    _fill(pb, value, None)
    return pb


def from_pb(cls: type[T], pb: Pb) -> T:
    """The dataclass in a protobuf message of its name."""
    value: T = _take(cls, pb, None)
    check(value)
    return value


def fill(pb: Pb, value: object) -> None:
    """Put a dataclass into a message of its class' name that belongs to a larger one."""
    check(value)
    _fill(pb, value, None)


def fill_union(pb: Pb, value: object, names: Names | None = None) -> None:
    """Put a `Message`, `PayloadHeader` or `Record` into its union message. `names`: of the stream that it goes to next."""
    check(value)
    _fill_union(pb, value, names)


def from_union(union: Any, pb: Pb, names: Names | None = None) -> Any:
    """The one dataclass in a union message; `names`: of the stream that it came from."""
    value = _take_union(union, pb, names)
    check(value)
    return value


def parse(pb_class: type[Any], data: bytes, max_bytes: int) -> Any:
    """A protobuf message from foreign bytes; its size is checked first."""
    name = pb_class.DESCRIPTOR.name
    if len(data) > max_bytes:
        raise WireError("size", f"a {name} of {len(data)} bytes; at most {max_bytes} are allowed")
    try:
        return pb_class.FromString(data)
    except DecodeError:
        raise WireError("frame", f"{len(data)} bytes that are no {name}") from None


def snake(name: str) -> str:
    """ReduceReady -> reduce_ready."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _pb_class(name: str) -> Any:
    return getattr(swarm_pb2, name)


def _field(cls: type, name: str) -> FieldDescriptor:
    found: FieldDescriptor = _pb_class(cls.__name__).DESCRIPTOR.fields_by_name[name]
    return found


# ---- dataclass -> protobuf


def _fill(pb: Any, value: Any, names: Names | None) -> None:
    cls: Any = type(value)
    for name, write in _writers(cls):
        write(pb, getattr(value, name), names)


def _fill_union(pb: Any, value: object, names: Names | None) -> None:
    inner = getattr(pb, snake(type(value).__name__))
    inner.SetInParent()
    _fill(inner, value, names)


@cache
def _writers(cls: type) -> tuple[tuple[str, Write], ...]:
    return tuple((name, _writer(_field(cls, name), hint)) for name, hint in field_types(cls).items())


def _writer(field: FieldDescriptor, hint: Any) -> Write:
    name = field.name
    if hint is str and field.type == field.TYPE_BYTES:
        return _text_writer(name)
    if field.enum_type is not None:
        numbers = {word.name: word.number for word in field.enum_type.values}
        return lambda pb, value, _: setattr(pb, name, numbers[value])
    if hint in _SCALARS or typing.get_origin(hint) is Literal:
        return lambda pb, value, _: setattr(pb, name, value)
    if typing.get_origin(hint) is tuple:
        return _tuple_writer(field, typing.get_args(hint)[0])
    if optional_of(hint) is not None:
        return _optional_writer(name)
    put = _fill_union if hint in UNION_MESSAGES else _fill

    def write(pb: Any, value: Any, names: Names | None) -> None:
        inner = getattr(pb, name)
        inner.SetInParent()
        put(inner, value, names)

    return write


def _text_writer(name: str) -> Write:
    if name in rows.BITMAPS:
        return lambda pb, value, _: setattr(pb, name, put_bits(value))
    if name in rows.NEVER_AGAIN:
        return lambda pb, value, _: setattr(pb, name, put_id(value, None) if value else b"")
    return lambda pb, value, names: setattr(pb, name, put_id(value, names) if value else b"")


def _tuple_writer(field: FieldDescriptor, item: Any) -> Write:
    name = field.name
    if not dataclasses.is_dataclass(item):
        if field.is_repeated:
            return lambda pb, value, _: getattr(pb, name).extend(value)
        if item is int:
            return lambda pb, value, _: setattr(pb, name, put_places(value))
        again = name not in rows.NEVER_AGAIN
        return lambda pb, value, names: setattr(pb, name, put_ids(value, names if again else None))
    if not field.is_repeated:
        return lambda pb, value, names: rows.put(getattr(pb, name), item, value, names)

    def write(pb: Any, value: Any, names: Names | None) -> None:
        container = getattr(pb, name)
        for element in value:
            _fill(container.add(), element, names)

    return write


def _optional_writer(name: str) -> Write:
    """Of a dataclass."""

    def write(pb: Any, value: Any, names: Names | None) -> None:
        if value is not None:
            inner = getattr(pb, name)
            inner.SetInParent()
            _fill(inner, value, names)

    return write


# ---- protobuf -> dataclass


def _take(cls: Any, pb: Any, names: Names | None) -> Any:
    return cls(*[read(pb, names) for read in _readers(cls)])


def _take_union(union: Any, pb: Any, names: Names | None) -> Any:
    which = pb.WhichOneof("kind")
    if which is None:
        raise WireError("frame", f"a {pb.DESCRIPTOR.name} of a kind that this version does not know")
    return _take(_by_snake(union)[which], getattr(pb, which), names)


@cache
def _by_snake(union: Any) -> dict[str, type]:
    return {snake(cls.__name__): cls for cls in union_classes(union)}


@cache
def _readers(cls: Any) -> tuple[Read, ...]:
    return tuple(_reader(cls, _field(cls, name), hint) for name, hint in field_types(cls).items())


def _reader(cls: type, field: FieldDescriptor, hint: Any) -> Read:
    name, place = field.name, f"{cls.__name__}.{field.name}"
    if hint is str and field.type == field.TYPE_BYTES:
        return _text_reader(name, place)
    if (enum := field.enum_type) is not None:
        return lambda pb, _: rows.at(place, rows.word, enum, getattr(pb, name))
    if hint in _SCALARS or typing.get_origin(hint) is Literal:
        return lambda pb, _: getattr(pb, name)
    if typing.get_origin(hint) is tuple:
        return _tuple_reader(field, typing.get_args(hint)[0], place)
    inside = optional_of(hint)
    if inside is not None:
        return lambda pb, names: _take(inside, getattr(pb, name), names) if pb.HasField(name) else None

    def read(pb: Any, names: Names | None) -> Any:
        if not pb.HasField(name):
            raise WireError("frame", f"{place} is missing")
        inner = getattr(pb, name)
        return _take_union(hint, inner, names) if hint in UNION_MESSAGES else _take(hint, inner, names)

    return read


def _text_reader(name: str, place: str) -> Read:
    if name in rows.BITMAPS:
        return lambda pb, _: rows.at(place, take_bits, getattr(pb, name))
    again = name not in rows.NEVER_AGAIN

    def read(pb: Any, names: Names | None) -> str:
        data: bytes = getattr(pb, name)
        if not data:
            return ""
        text, after = rows.at(place, take_id, data, 0, names if again else None)
        if after != len(data) or not text:
            raise WireError("value", f"{place} is an id and {len(data) - after} bytes behind it")
        return text

    return read


def _tuple_reader(field: FieldDescriptor, item: Any, place: str) -> Read:
    name = field.name
    if not dataclasses.is_dataclass(item):
        if field.is_repeated:
            return lambda pb, _: tuple(getattr(pb, name))
        if item is int:
            return lambda pb, _: rows.at(place, take_places, getattr(pb, name))
        again = name not in rows.NEVER_AGAIN
        return lambda pb, names: rows.at(place, take_ids, getattr(pb, name), names if again else None)
    if not field.is_repeated:
        return lambda pb, names: rows.take(getattr(pb, name), item, place, names) if pb.HasField(name) else ()
    return lambda pb, names: tuple([_take(item, element, names) for element in getattr(pb, name)])

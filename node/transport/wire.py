"""Dataclasses to protobuf and back, generic over their fields; proto/swarm.proto has one message per class.

Everything that is decoded has passed `checks.check`. Errors: `WireError`.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Pb

from node.transport import swarm_pb2
from node.transport.checks import WireError, check, field_types, optional_of, union_classes
from protocol.messages import Message, PayloadHeader
from protocol.records import Record

T = TypeVar("T")
Write = Callable[[Any, Any], None]
"""(protobuf message, value)"""
Read = Callable[[Any], Any]

UNION_MESSAGES: dict[Any, str] = {Message: "Envelope", PayloadHeader: "Header", Record: "Record"}
"""Unions and the protobuf message that holds one of their classes in a oneof called `kind`."""
_SCALARS = (str, int, float, bool)


def to_pb(value: Any) -> Pb:
    """The protobuf message of a dataclass."""
    check(value)
    pb = _pb_class(type(value).__name__)()
    _fill(pb, value)
    return pb


def from_pb(cls: type[T], pb: Pb) -> T:
    """The dataclass in a protobuf message of its name."""
    value: T = _take(cls, pb)
    check(value)
    return value


def fill(pb: Pb, value: object) -> None:
    """Put a dataclass into a message of its class' name that belongs to a larger one."""
    check(value)
    _fill(pb, value)


def fill_union(pb: Pb, value: object) -> None:
    """Put a `Message`, `PayloadHeader` or `Record` into its union message."""
    check(value)
    _fill_union(pb, value)


def from_union(union: Any, pb: Pb) -> Any:
    """The one dataclass in a union message."""
    value = _take_union(union, pb)
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


def _pb_class(name: str) -> Callable[[], Pb]:
    return typing.cast(Callable[[], Pb], getattr(swarm_pb2, name))


# ---- dataclass -> protobuf


def _fill(pb: Any, value: Any) -> None:
    cls: Any = type(value)
    for name, write in _writers(cls):
        write(pb, getattr(value, name))


def _fill_union(pb: Any, value: object) -> None:
    inner = getattr(pb, snake(type(value).__name__))
    inner.SetInParent()
    _fill(inner, value)


@cache
def _writers(cls: type) -> tuple[tuple[str, Write], ...]:
    return tuple((name, _writer(name, hint)) for name, hint in field_types(cls).items())


def _writer(name: str, hint: Any) -> Write:
    if hint in _SCALARS or typing.get_origin(hint) is Literal:
        return lambda pb, value: setattr(pb, name, value)
    if typing.get_origin(hint) is tuple:
        return _tuple_writer(name, typing.get_args(hint)[0])
    if optional_of(hint) is not None:
        return _optional_writer(name, optional_of(hint))
    put = _fill_union if hint in UNION_MESSAGES else _fill

    def write(pb: Any, value: Any) -> None:
        inner = getattr(pb, name)
        inner.SetInParent()
        put(inner, value)

    return write


def _tuple_writer(name: str, item: Any) -> Write:
    if not dataclasses.is_dataclass(item):
        return lambda pb, value: getattr(pb, name).extend(value)

    def write(pb: Any, value: Any) -> None:
        container = getattr(pb, name)
        for element in value:
            _fill(container.add(), element)

    return write


def _optional_writer(name: str, hint: Any) -> Write:
    """Of a dataclass, or of a tuple of scalars."""

    def write(pb: Any, value: Any) -> None:
        if value is not None:
            inner = getattr(pb, name)
            inner.SetInParent()
            if dataclasses.is_dataclass(hint):
                _fill(inner, value)
            else:
                inner.values.extend(value)

    return write


# ---- protobuf -> dataclass


def _take(cls: Any, pb: Any) -> Any:
    return cls(*(read(pb) for read in _readers(cls)))


def _take_union(union: Any, pb: Any) -> Any:
    which = pb.WhichOneof("kind")
    if which is None:
        raise WireError("frame", f"a {pb.DESCRIPTOR.name} of a kind that this version does not know")
    return _take(_by_snake(union)[which], getattr(pb, which))


@cache
def _by_snake(union: Any) -> dict[str, type]:
    return {snake(cls.__name__): cls for cls in union_classes(union)}


@cache
def _readers(cls: Any) -> tuple[Read, ...]:
    return tuple(_reader(cls.__name__, name, hint) for name, hint in field_types(cls).items())


def _reader(cls: str, name: str, hint: Any) -> Read:
    if hint in _SCALARS or typing.get_origin(hint) is Literal:
        return lambda pb: getattr(pb, name)
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        if not dataclasses.is_dataclass(item):
            return lambda pb: tuple(getattr(pb, name))
        return lambda pb: tuple(_take(item, element) for element in getattr(pb, name))
    inside = optional_of(hint)
    if dataclasses.is_dataclass(inside):
        return lambda pb: _take(inside, getattr(pb, name)) if pb.HasField(name) else None
    if inside is not None:
        return lambda pb: tuple(getattr(pb, name).values) if pb.HasField(name) else None

    def read(pb: Any) -> Any:
        if not pb.HasField(name):
            raise WireError("frame", f"{cls}.{name} is missing")
        inner = getattr(pb, name)
        return _take_union(hint, inner) if hint in UNION_MESSAGES else _take(hint, inner)

    return read

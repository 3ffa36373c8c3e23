"""Lists of dataclasses as columns: message `ShareRows` holds for each field of `Share` the values of all rows.

Numbers and truth values are packed, ids and bitmaps stand behind one another, a dataclass inside has columns of its own. All
columns are equally long; without rows there is no message. Errors: `WireError`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, ParamSpec, TypeVar

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from node.transport.bits import put_rows, take_rows
from node.transport.checks import MAX_TUPLE_ITEMS, WireError, field_types
from node.transport.names import Names, put_ids, take_ids

BITMAPS = frozenset({"microbatches"})
"""Texts that are bitmaps."""
NEVER_AGAIN = frozenset({"above", "digest", "contributors", "state_id", "state_ids", "states"})
"""Ids that are told once: they would only drive names from their slots."""

P = ParamSpec("P")
T = TypeVar("T")
PutColumn = Callable[[Any, list[Any], Names | None], None]
"""(message with the columns, values of all rows, names of the stream)"""
TakeColumn = Callable[[Any, str, Names | None], list[Any]]
"""(message with the columns, where it stands, names of the stream)"""


def put(pb: Any, cls: Any, values: tuple[Any, ...], names: Names | None) -> None:
    """Fill `pb`, a field of a larger message, with one row per value."""
    if values:
        pb.SetInParent()
        _put(pb, cls, list(values), names)


def take(pb: Any, cls: Any, place: str, names: Names | None) -> tuple[Any, ...]:
    """The rows in a message that is there."""
    return tuple(_take(pb, cls, place, names))


def word(enum: EnumDescriptor, number: int) -> str:
    """Name of an enum's value; 0 is none."""
    found = enum.values_by_number.get(number)
    if found is None or not number:
        raise WireError("value", f"{number} is no {enum.name}")
    return str(found.name)


def at(place: str, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `read` returns; its error says where it was."""
    try:
        return read(*args, **kwargs)
    except WireError as error:
        raise WireError(error.code, f"{place}: {error}") from None


def _put(pb: Any, cls: Any, values: list[Any], names: Names | None) -> None:
    for name, put_column in _putters(cls, pb.DESCRIPTOR.name):
        put_column(pb, [getattr(value, name) for value in values], names)


def _take(pb: Any, cls: Any, place: str, names: Names | None) -> list[Any]:
    columns = [take_column(pb, place, names) for take_column in _takers(cls, pb.DESCRIPTOR.name)]
    sizes = {len(column) for column in columns}
    if len(sizes) != 1 or not 0 < min(sizes) <= MAX_TUPLE_ITEMS:
        raise WireError(
            "value", f"{place} is not a list of at most {MAX_TUPLE_ITEMS} items: it has {sorted(sizes)} in its columns"
        )
    return [cls(*row) for row in zip(*columns, strict=True)]


@cache
def _columns(cls: Any, pb_name: str) -> list[tuple[FieldDescriptor, Any]]:
    from node.transport import swarm_pb2

    fields = getattr(swarm_pb2, pb_name).DESCRIPTOR.fields_by_name
    return [(fields[name], hint) for name, hint in field_types(cls).items()]


@cache
def _putters(cls: Any, pb_name: str) -> list[tuple[str, PutColumn]]:
    return [(field.name, _putter(field, hint)) for field, hint in _columns(cls, pb_name)]


def _putter(field: FieldDescriptor, hint: Any) -> PutColumn:
    name = field.name
    if dataclasses.is_dataclass(hint):
        return lambda pb, column, names: _put(getattr(pb, name), hint, column, names)
    if name in BITMAPS:
        return lambda pb, column, _: setattr(pb, name, put_rows(tuple(column)))
    if hint is str:
        again = name not in NEVER_AGAIN
        return lambda pb, column, names: setattr(pb, name, put_ids(tuple(column), names if again else None))
    if field.enum_type is not None:
        numbers = {value.name: value.number for value in field.enum_type.values}
        return lambda pb, column, _: getattr(pb, name).extend([numbers[value] for value in column])
    return lambda pb, column, _: getattr(pb, name).extend(column)


@cache
def _takers(cls: Any, pb_name: str) -> list[TakeColumn]:
    return [_taker(field, hint) for field, hint in _columns(cls, pb_name)]


def _taker(field: FieldDescriptor, hint: Any) -> TakeColumn:
    name = field.name
    if dataclasses.is_dataclass(hint):
        return lambda pb, place, names: _take(getattr(pb, name), hint, place, names)
    if name in BITMAPS:
        return lambda pb, place, _: list(at(f"{place}.{name}", take_rows, getattr(pb, name)))
    if hint is str:
        again = name not in NEVER_AGAIN
        return lambda pb, place, names: list(at(f"{place}.{name}", take_ids, getattr(pb, name), names if again else None))
    if (enum := field.enum_type) is not None:
        return lambda pb, place, _: [at(f"{place}.{name}", word, enum, number) for number in getattr(pb, name)]
    return lambda pb, _place, _names: list(getattr(pb, name))

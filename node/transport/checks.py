"""What may stand in a message: types, bounds and words, checked before anybody looks at it.

`check` works on plain dataclasses, knows nothing about bytes; `wire` calls it on everything that it encodes
or decodes, the in-memory transport on everything that it carries.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

MAX_STRING_CHARS = 4096
MAX_TUPLE_ITEMS = 8192
MAX_MICROBATCHES = 4096
MAX_INT = (1 << 63) - 1
MIN_INT = -1
"""-1 says 'none yet' or 'any'; nothing on the wire is below it."""

# What a diverged run may really measure: the coordinator decides what follows, the wire has no opinion.
MAY_BE_INFINITE = frozenset(
    {
        "ReduceReady.loss_sum",
        "ReducedReport.squared_norm",
        "Evaluated.loss_sum",
        "Standing.validation_loss",
    }
)
_BITMAP = re.compile(r"0|[1-9a-f][0-9a-f]{0,1023}")
"""Of at most `MAX_MICROBATCHES`."""

FaultCode = Literal["frame", "size", "value", "order", "memory", "version", "run", "peer", "ticket", "stale", "stalled"]
"""Why a stream was refused or closed; a metric label."""


class WireError(ValueError):
    """A peer sent what must not be sent (or, on the way out, we were about to). `code` is a `FaultCode`."""

    def __init__(self, code: FaultCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code: FaultCode = code


Checker = Callable[[Any, str], None]
"""(value, its place as Class.field); raises `WireError`."""


def check(value: Any) -> None:
    """Raises `WireError` unless every field of the dataclass holds what its type says, within bounds."""
    cls: Any = type(value)
    for name, checker in _fields(cls):
        checker(getattr(value, name), f"{cls.__name__}.{name}")


def union_classes(hint: Any) -> tuple[type, ...]:
    """The dataclasses of a union such as `Record`; () for anything else."""
    if not isinstance(hint, types.UnionType):
        return ()
    members = typing.get_args(hint)
    return members if all(dataclasses.is_dataclass(member) for member in members) else ()


def optional_of(hint: Any) -> Any:
    """X of `X | None`; None for anything else."""
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else ()
    if len(members) == 2 and types.NoneType in members:
        return next(member for member in members if member is not types.NoneType)
    return None


@cache
def field_types(cls: type) -> dict[str, Any]:
    """Names and resolved types of a dataclass' fields, in order."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


@cache
def _fields(cls: type) -> tuple[tuple[str, Checker], ...]:
    return tuple(
        (name, _bitmap if name == "microbatches" and hint is str else _places if name == "owners" else _checker(hint))
        for name, hint in field_types(cls).items()
    )


def _checker(hint: Any) -> Checker:
    origin = typing.get_origin(hint)
    if hint in _SCALARS:
        return _SCALARS[hint]
    if origin is Literal:
        return _one_of(frozenset(typing.get_args(hint)))
    if origin is tuple:
        return _tuple_of(_checker(typing.get_args(hint)[0]))
    if optional_of(hint) is not None:
        return _or_none(_checker(optional_of(hint)))
    classes = union_classes(hint) or (hint,)
    assert all(dataclasses.is_dataclass(cls) for cls in classes), f"no wire form for {hint}"
    return _nested(frozenset(classes))


def _string(value: Any, place: str) -> None:
    if type(value) is not str or len(value) > MAX_STRING_CHARS:
        raise WireError("value", f"{place} is not a string of at most {MAX_STRING_CHARS} characters")


def _bitmap(value: Any, place: str) -> None:
    if type(value) is not str or not _BITMAP.fullmatch(value):
        raise WireError("value", f"{place} is not a bitmap of microbatches in hexadecimal")


def _places(value: Any, place: str) -> None:
    if type(value) is not tuple or len(value) > MAX_MICROBATCHES:
        raise WireError("value", f"{place} is not a list of at most {MAX_MICROBATCHES} items")
    if any(type(item) is not int or not 0 <= item < MAX_TUPLE_ITEMS for item in value):
        raise WireError("value", f"{place} has an item that is none of 0..{MAX_TUPLE_ITEMS - 1}")


def _integer(value: Any, place: str) -> None:
    if type(value) is not int or not MIN_INT <= value <= MAX_INT:
        raise WireError("value", f"{place} is not an integer from {MIN_INT} to 2^63 - 1")


def _boolean(value: Any, place: str) -> None:
    if type(value) is not bool:
        raise WireError("value", f"{place} is not true or false")


def _number(value: Any, place: str) -> None:
    if type(value) is not float and type(value) is not int:
        raise WireError("value", f"{place} is not a number")
    if not math.isfinite(value) and place not in MAY_BE_INFINITE:
        raise WireError("value", f"{place} is {value}, not a finite number")


_SCALARS: dict[Any, Checker] = {str: _string, int: _integer, bool: _boolean, float: _number}


def _one_of(words: frozenset[str]) -> Checker:
    def checker(value: Any, place: str) -> None:
        if type(value) is not str or value not in words:
            raise WireError("value", f"{place} is {str(value)[:40]!r}, none of {', '.join(sorted(words))}")

    return checker


def _tuple_of(item: Checker) -> Checker:
    def checker(value: Any, place: str) -> None:
        if type(value) is not tuple or len(value) > MAX_TUPLE_ITEMS:
            raise WireError("value", f"{place} is not a list of at most {MAX_TUPLE_ITEMS} items")
        for element in value:
            item(element, place)

    return checker


def _or_none(inner: Checker) -> Checker:
    def checker(value: Any, place: str) -> None:
        if value is not None:
            inner(value, place)

    return checker


def _nested(classes: frozenset[type]) -> Checker:
    def checker(value: Any, place: str) -> None:
        if type(value) not in classes:
            raise WireError("value", f"{place} is a {type(value).__name__}, which has no place there")
        check(value)

    return checker

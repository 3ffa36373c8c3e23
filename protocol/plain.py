"""Dataclasses of this package as plain JSON values: for logs, for replays, for comparing in tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

CLASS = "$"
"""Key of the class name; no field can have it."""


def to_plain(value: object) -> Any:
    """Dataclasses, at any depth, as dictionaries with their class name under `$`; tuples as lists; the rest as it is."""
    if is_dataclass(value) and not isinstance(value, type):
        return {CLASS: type(value).__name__} | {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    return value


def from_plain(kind: Any, value: Any) -> Any:
    """What `to_plain` made this of, where the type `kind` was expected: a dataclass, a union of them, a container of them.

    For what this program wrote itself, not for what peers say: a field may hold another type of number than it should. Raises
    `ValueError` for a class that `kind` does not name, and for fields that are missing or too many.
    """
    if isinstance(value, dict) and CLASS in value:
        return _instance(_class_named(kind, value[CLASS]), value)
    if isinstance(value, dict):
        keys, items = _args(kind, dict) or (str, Any)
        return {int(key) if keys is int else key: from_plain(items, item) for key, item in value.items()}
    if isinstance(value, list):
        of = _args(kind, tuple)
        if not of:
            return [from_plain((_args(kind, list) or (Any,))[0], item) for item in value]
        kinds = [of[0]] * len(value) if of[-1] is ... else list(of)
        return tuple(from_plain(each, item) for each, item in zip(kinds, value, strict=True))
    return value


def _instance(cls: Any, value: dict[str, Any]) -> Any:
    hints = _hints(cls)
    if set(value) - {CLASS} != set(hints):
        raise ValueError(f"{cls.__name__} has the fields {sorted(hints)}, not {sorted(set(value) - {CLASS})}")
    return cls(**{name: from_plain(hint, value[name]) for name, hint in hints.items()})


@cache
def _hints(cls: Any) -> dict[str, Any]:
    every = get_type_hints(cls)
    return {f.name: every[f.name] for f in fields(cls)}


@cache
def _class_named(kind: Any, name: str) -> Any:
    found = next((part for part in _parts(kind) if is_dataclass(part) and getattr(part, "__name__", "") == name), None)
    if found is None:
        raise ValueError(f"{name} is not expected here, but {kind}")
    return found


@cache
def _args(kind: Any, container: type) -> tuple[Any, ...]:
    """Of the container that is, or is in, this union; () if none is."""
    return next((get_args(part) for part in _parts(kind) if get_origin(part) is container), ())


def _parts(kind: Any) -> Iterator[Any]:
    """The types of a union, however deep; one that is none is its own part."""
    origin = get_origin(kind)
    if origin is None or origin in (tuple, list, dict):
        yield kind
        return
    for part in get_args(kind):
        yield from _parts(part)

"""Does a dashboard's JSON say only what Grafana's published schema knows, and with values of the right types?

The schema is that of grafana-foundation-sdk, whose classes Grafana generates from it. `from_json` takes what it knows and does
not look at types, so two questions are asked: what is lost on the way through the classes, and which attribute is not what its
annotation says.
"""

from __future__ import annotations

import enum
import json
import types
import typing
from collections.abc import Iterator
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

OWN_KEYS = frozenset({"titleFormat", "textFormat"})
"""Of an annotation: the Prometheus plugin reads them, the schema leaves them to it."""


def read(told: dict[str, Any]) -> Dashboard:
    """The JSON as Grafana's classes."""
    register_default_plugins()
    return Dashboard.from_json(told)


def lost(told: dict[str, Any]) -> list[str]:
    """Paths of what the schema does not know: keys that do not survive the way through the classes."""
    return list(_missing(told, json.loads(JSONEncoder().encode(read(told))), ""))


def _missing(before: Any, after: Any, path: str) -> Iterator[str]:
    if isinstance(before, dict):
        for key, value in before.items():
            if not isinstance(after, dict) or key not in after:
                yield f"{path}.{key}"
            else:
                yield from _missing(value, after[key], f"{path}.{key}")
    elif isinstance(before, list):
        if not isinstance(after, list) or len(before) != len(after):
            yield path
        else:
            for number, (one, other) in enumerate(zip(before, after, strict=True)):
                yield from _missing(one, other, f"{path}[{number}]")
    elif before != after:
        yield path


def mistyped(told: dict[str, Any]) -> list[str]:
    """Paths of values that are not of the schema's type."""
    return list(_wrong(read(told), Dashboard, "dashboard"))


def _wrong(value: Any, kind: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict) and hasattr(kind, "from_json"):  # the classes leave lists of these as they are
        made = kind.from_json(value)
        yield from _missing(value, json.loads(JSONEncoder().encode(made)), path)
        yield from _wrong(made, kind, path)
    elif not _fits(value, kind):
        yield f"{path}: {value!r} is no {kind}"
    elif isinstance(value, list):
        (item,) = _arguments(kind, list) or (Any,)
        for number, one in enumerate(value):
            yield from _wrong(one, item, f"{path}[{number}]")
    elif isinstance(value, dict):
        _, item = _arguments(kind, dict) or (Any, Any)
        for key, one in value.items():
            yield from _wrong(one, item, f"{path}[{key!r}]")
    elif type(value).__module__.startswith("grafana_foundation_sdk.models"):
        hints = {} if isinstance(value, enum.Enum) else typing.get_type_hints(type(value))
        for name, hint in hints.items():
            yield from _wrong(getattr(value, name), hint, f"{path}.{name}")


def _arguments(kind: Any, origin: type) -> tuple[Any, ...]:
    options = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    return next((typing.get_args(option) for option in options if typing.get_origin(option) is origin), ())


def _fits(value: Any, kind: Any) -> bool:
    origin = typing.get_origin(kind)
    if kind in (Any, object) or isinstance(kind, typing.TypeVar):
        return True
    if kind is None or kind is type(None):
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(kind))
    if origin is typing.Literal:
        return value in typing.get_args(kind)
    if origin is not None:
        return isinstance(value, origin)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return value in {member.value for member in kind}
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))

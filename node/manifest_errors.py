"""What is wrong with a manifest, in sentences: one per wrong field, naming it by its dotted path and saying what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from node.manifest_yaml import KeyPath
from protocol.manifest import Manifest

MAX_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `path` is the field to look at; `sentence` names it."""

    path: KeyPath
    sentence: str


def findings_of(error: ValidationError, model: type[BaseModel] = Manifest) -> list[Finding]:
    """One finding per wrong field; unknown keys first, missing ones last (the former often explain the latter)."""
    rank = {"extra_forbidden": 0, "missing": 2}
    details = sorted(error.errors(include_url=False), key=lambda detail: rank.get(detail["type"], 1))
    return [_finding(detail, model) for detail in details]


def dotted(path: KeyPath) -> str:
    """('data', 'train', 0, 'digest') -> 'data.train[0].digest'."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def section_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """The section's class at a path, None where there is a plain value."""
    found: type[BaseModel] | None = model
    for part in path:
        if found is None:
            return None
        if isinstance(part, str):
            found = section_of(found.model_fields[part].annotation) if part in found.model_fields else None
    return found


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section in an annotation such as `X`, `X | None` or `tuple[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType, tuple):
        return next(filter(None, map(section_of, get_args(annotation))), None)
    return None


def paths_of(model: type[BaseModel], path: KeyPath = ()) -> Iterator[KeyPath]:
    """Every path in a model, outer ones first; list indices are left out."""
    for name, field in model.model_fields.items():
        yield (*path, name)
        section = section_of(field.annotation)
        if section is not None:
            yield from paths_of(section, (*path, name))


def _finding(detail: ErrorDetails, model: type[BaseModel]) -> Finding:
    path: KeyPath = detail["loc"]
    kind, name = detail["type"], dotted(path)
    if kind == "extra_forbidden":
        return Finding(path, f"{name}: unknown key; {_instead(path, model)}")
    if kind == "missing":
        return Finding(path[:-1], f"{name} is missing; add it: {_description(path, model)}")
    if kind == "value_error":
        sentence = detail["msg"].removeprefix("Value error, ")
        return Finding(_mentioned(sentence, path, model), f"{name}: {sentence}" if name else sentence)
    if kind == "model_type":
        return Finding(path, f"{name or 'the file'} should hold keys and values, not {_shown(detail['input'])}")
    message = re.sub(r"^(Input|String|Tuple|Field) ", "", detail["msg"])
    about = f" ({_description(path, model).removesuffix('.')})"
    return Finding(path, f"{name}: {message}, not {_shown(detail['input'])}{about}")


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def _description(path: KeyPath, model: type[BaseModel]) -> str:
    names = [part for part in path if isinstance(part, str)]
    section = section_at(model, path[: path.index(names[-1])]) if names else None
    field = section.model_fields.get(names[-1]) if section else None
    return field.description or "" if field else ""


def _instead(path: KeyPath, model: type[BaseModel]) -> str:
    """A guess at what was meant."""
    key = str(path[-1])
    section = section_at(model, path[:-1]) or model
    known = [*section.model_fields]
    near = get_close_matches(key, known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    elsewhere = {str(other[-1]): dotted(other) for other in reversed([*paths_of(model)])}
    near = [key] if key in elsewhere else get_close_matches(key, elsewhere, n=1)
    if near:
        return f"did you mean {elsewhere[near[0]]}?"
    return f"known here: {', '.join(known)}"


def _mentioned(sentence: str, path: KeyPath, model: type[BaseModel]) -> KeyPath:
    """The first field that a sentence about a section names, else the section."""
    section = section_at(model, path)
    known = {dotted(p): p for p in paths_of(section)} if section else {}
    for word in re.findall(r"[a-z_]+(?:\.[a-z_]+)*", sentence):
        if word in known:
            return (*path, *known[word])
    return path

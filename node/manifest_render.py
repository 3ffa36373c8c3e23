"""A manifest as YAML for people: every field has its description and default as a comment.

Reading it back gives the same digest.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from node.manifest_errors import section_of
from protocol.manifest import Manifest

WIDTH = 110
HEAD = """\
# A run of regrow: everything that all of its nodes have to agree on, and nothing else.
# Its digest names the run: with any other value below it is another run. `regrow start THIS_FILE` begins it.
"""


def render(manifest: Manifest) -> str:
    """The complete file."""
    return HEAD + "\n".join(_section(manifest, 0)) + "\n"


def _section(section: BaseModel, indent: int) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if indent == 0:
            yield ""
        yield from _comment(_about(field), indent)
        if isinstance(value, BaseModel):
            yield _line(f"{name}:", indent)
            yield from _section(value, indent + 2)
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            yield _line(f"{name}:", indent)
            yield from _items(value, indent + 2)
        else:
            yield _line(f"{name}: {scalar(value)}", indent)
            inner = section_of(field.annotation)
            if value is None and inner is not None:
                yield from _fields(inner, indent + 2)


def _items(values: tuple[BaseModel, ...], indent: int) -> Iterator[str]:
    """List items, their fields described once."""
    yield from _fields(type(values[0]), indent)
    for value in values:
        pairs = [f"{name}: {scalar(getattr(value, name))}" for name in type(value).model_fields]
        yield _line(f"- {pairs[0]}", indent)
        yield from (_line(pair, indent + 2) for pair in pairs[1:])


def _fields(model: type[BaseModel], indent: int) -> Iterator[str]:
    """What can be given in a section that is not there."""
    for name, field in model.model_fields.items():
        yield from _comment(f"{name}: {_about(field)}", indent)


def _about(field: FieldInfo) -> str:
    """Description, choices and default."""
    text = field.description or ""
    if get_origin(field.annotation) is Literal:
        text += f" One of: {', '.join(get_args(field.annotation))}."
    if not field.is_required() and field.default_factory is None:
        text += f" Default: {scalar(field.default)}."
    return text


def _comment(text: str, indent: int) -> Iterator[str]:
    yield from (_line(f"# {line}", indent) for line in textwrap.wrap(text, WIDTH - indent - 2, break_long_words=False))


def _line(text: str, indent: int) -> str:
    return " " * indent + text


def scalar(value: Any) -> str:
    """A plain value, or a list of them, as YAML on one line; floats keep all their digits."""
    values = list(value) if isinstance(value, tuple) else [value]
    plain = all(str(each).isprintable() for each in values)  # else escaped: not every line break comes back as it was
    value = values if isinstance(value, tuple) else value
    return yaml.safe_dump([value], default_flow_style=True, width=1 << 30, allow_unicode=plain).strip()[1:-1]

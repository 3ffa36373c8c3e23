"""YAML with line numbers: plain data plus, for each key, where it stands. Duplicate keys and aliases are refused.

Knows nothing of manifests. Errors are `UnusableError(2)` with file and line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from node.ports import UnusableError

MAX_BYTES = 64 << 20
KeyPath = tuple[str | int, ...]


@dataclass(slots=True)
class Document:
    """Parsed YAML. `lines` gives the line, from 1, of each key and list item by its path."""

    where: str
    data: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def line_of(self, path: KeyPath) -> int:
        """Line of the key, or of the nearest section around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_text(path: Path) -> str:
    """A text file of the user's. Raises `UnusableError`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UnusableError(2, f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise UnusableError(2, f"{path} is a directory; name the file in it") from None
    except OSError as error:
        raise UnusableError(2, f"{path} cannot be read ({error.strerror}); check its permissions") from None
    if len(data) > MAX_BYTES:
        raise UnusableError(2, f"{path} is larger than {MAX_BYTES >> 20} MiB; is this the right file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnusableError(2, f"{path}: byte {error.start} is not UTF-8 text; is this the right file?") from None


def parse_yaml(text: str, where: str) -> Document:
    """Parse one YAML document; `where` names it in errors. Raises `UnusableError`."""
    document = Document(where)
    try:
        with _loader(text) as loader:
            root = loader.get_single_node()
            if root is not None:
                document.data = _Walk(loader, document).value(root, ())
    except yaml.MarkedYAMLError as error:
        raise UnusableError(2, f"{where}{_line(error)}: not valid YAML: {_reason(error)}") from None
    except yaml.YAMLError as error:
        raise UnusableError(2, f"{where}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UnusableError(2, f"{where}: nested too deeply to be read") from None
    return document


@contextmanager
def _loader(text: str) -> Iterator[yaml.SafeLoader]:
    """A loader that gives its memory back."""
    loader = yaml.SafeLoader(text)
    try:
        yield loader
    finally:
        loader.dispose()


def _line(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f":{mark.line + 1}" if mark else ""


def _reason(error: yaml.MarkedYAMLError) -> str:
    return ", ".join(part for part in (error.problem, error.context) if part)


class _Walk:
    """Turns YAML nodes into plain data and notes the lines."""

    def __init__(self, loader: yaml.SafeLoader, document: Document) -> None:
        self._loader = loader
        self._document = document
        self._seen: set[int] = set()

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        """The plain data of a node."""
        if id(node) in self._seen:
            self._refuse(node, "anchors and aliases are not used here; write the value out")
        self._seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(item, (*path, i)) for i, item in enumerate(node.value)]
        try:
            return self._loader.construct_object(node)
        except ValueError as error:
            return self._refuse(node, f"{node.value!r}: {error}")

    def _item(self, node: yaml.Node, path: KeyPath) -> Any:
        self._document.lines[path] = node.start_mark.line + 1
        return self.value(node, path)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse(key_node, "a key must be a word")
            key = str(key_node.value)
            here = (*path, key)
            if key in out:
                first = self._document.lines[here]
                self._refuse(key_node, f"the key {key} is there twice (first in line {first}); remove one")
            self._document.lines[here] = key_node.start_mark.line + 1
            out[key] = self.value(value_node, here)
        return out

    def _refuse(self, node: yaml.Node, what: str) -> None:
        raise UnusableError(2, f"{self._document.where}:{node.start_mark.line + 1}: {what}")

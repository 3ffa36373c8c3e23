"""Who may import what, and how long files and functions may be, checked on the syntax tree.

A rule is a function of (path, tree) that yields findings; it never imports what it reads. Each rule has
snippets below that it must object to and snippets that it must let pass, so that a rule which has stopped
working fails here too. Lines inside `if TYPE_CHECKING` count like any other.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
TREES = ("protocol", "node", "tests")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80


class Finding(NamedTuple):
    line: int
    what: str


Rule = Callable[[str, ast.Module], Iterator[Finding]]
RULES: dict[str, Rule] = {}


def rule(check: Rule) -> Rule:
    RULES[check.__name__] = check
    return check


# --- reading a tree


def within(name: str, package: str) -> bool:
    """Whether a dotted name is the package or something inside it."""
    return name == package or name.startswith(package + ".")


def lives_in(path: str, places: Iterable[str]) -> bool:
    """A place is a file, a folder (with its final slash) or a glob."""
    return any(path.startswith(p) if p.endswith("/") else fnmatch(path, p) for p in places)


IMPORTERS = ("__import__", "import_module", "importlib.import_module")


def imported(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Every dotted name a file imports; `from a import b` gives a.b, relative names are made absolute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Finding(node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [node.module] if node.module else []
            if node.level:
                base = [*Path(path).parts[: -node.level], *base]
            yield from (Finding(node.lineno, ".".join([*base, alias.name])) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            name = node.args[0]
            if ast.unparse(node.func) in IMPORTERS and isinstance(name, ast.Constant):
                yield Finding(node.lineno, str(name.value))


def full_names(tree: ast.Module) -> Iterator[Finding]:
    """Every dotted expression, its first part replaced by what it was imported as: `t.load` -> torch.load."""
    alias_of: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            alias_of |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            alias_of |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            first, dot, rest = ast.unparse(node).partition(".")
            yield Finding(node.lineno, alias_of.get(first, first) + dot + rest)


# --- the rules

# Where chance, time, concurrency, input and output come from; pure code gets them as arguments or not at all.
IMPURE = frozenset(
    """
    _thread asyncio builtins concurrent contextvars ctypes curses dbm faulthandler fcntl fileinput
    ftplib gc getpass glob http imaplib importlib inspect io locale logging marshal mmap multiprocessing
    nt ntpath os pathlib pickle platform poplib posix posixpath pwd queue random resource runpy sched
    secrets select selectors shelve shutil signal smtplib socket socketserver sqlite3 ssl subprocess sys
    syslog tempfile termios threading time timeit tkinter traceback tracemalloc tty urllib uuid venv
    weakref webbrowser xmlrpc zoneinfo
    """.split()
)
PURE = (sys.stdlib_module_names - IMPURE) | {"pydantic", "protocol"}
CLOCKS = re.compile(r"(?:^|\.)(?:datetime\.(?:now|utcnow|today)|date\.today)$")
EFFECTS = frozenset({"open", "print", "input", "exec", "eval", "breakpoint"})


@rule
def protocol_is_pure(path: str, tree: ast.Module) -> Iterator[Finding]:
    if not lives_in(path, ["protocol/"]):
        return
    for line, name in imported(path, tree):
        if name.partition(".")[0] not in PURE:
            yield Finding(line, f"protocol/ imports {name}")
    for line, name in full_names(tree):
        if CLOCKS.search(name):
            yield Finding(line, f"protocol/ reads the clock with {name}: `now` is an argument")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in EFFECTS:
            yield Finding(node.lineno, f"protocol/ calls {node.func.id}()")


REAL = ("tests/conformance/", "tests/integration/", "tests/chaos/")
CONFINED: dict[str, tuple[str, ...]] = {
    "hivemind": ("node/directory.py", "node/directory/", *REAL),
    "grpc": ("node/transport/", *REAL),
    "torch": ("node/stage/", "tests/numerics/", "tests/bench/", *REAL),
    "safetensors.torch": ("node/stage/", "tests/numerics/", "tests/bench/", *REAL),
    "transformers": ("tests/numerics/", "tests/bench/"),
}


@rule
def adapters_keep_their_library(path: str, tree: ast.Module) -> Iterator[Finding]:
    for line, name in imported(path, tree):
        for library, places in CONFINED.items():
            if within(name, library) and not lives_in(path, places):
                yield Finding(line, f"{name} is imported outside {', '.join(places)}")


@rule
def generated_code_stays_in_transport(path: str, tree: ast.Module) -> Iterator[Finding]:
    places = ("node/transport/", *REAL)
    for line, name in imported(path, tree):
        if re.search(r"_pb2(_grpc)?(\.|$)", name) and not lives_in(path, places):
            yield Finding(line, f"{name} is imported outside {', '.join(places)}")


@rule
def reference_is_independent(path: str, tree: ast.Module) -> Iterator[Finding]:
    if not lives_in(path, ["tests/numerics/reference*.py"]):
        return
    for line, name in imported(path, tree):
        if within(name, "node") or within(name, "protocol"):
            yield Finding(line, f"the reference imports {name}, which it is there to check")


FOREIGN_BYTES = ("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve")
UNPICKLERS = ("torch.load", "torch.serialization.load", "pandas.read_pickle")


@rule
def nothing_is_unpickled(path: str, tree: ast.Module) -> Iterator[Finding]:
    for line, name in imported(path, tree):
        if name in UNPICKLERS or any(within(name, banned) for banned in FOREIGN_BYTES):
            yield Finding(line, f"imports {name}")
    for line, name in full_names(tree):
        if name in UNPICKLERS:
            yield Finding(line, f"uses {name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield Finding(node.value.lineno, "allow_pickle is not False")


@rule
def functions_are_short(path: str, tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield Finding(node.lineno, f"{node.name} has {lines} lines, at most {MAX_FUNCTION_LINES}")


# --- applied to the repository


def handwritten() -> list[Path]:
    files = [path for tree in TREES for path in (ROOT / tree).rglob("*.py")]
    return sorted(path for path in files if not re.search(r"_pb2(_grpc)?\.py$", path.name))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@pytest.mark.parametrize("check", RULES.values(), ids=list(RULES))
def test_repository_keeps(check: Rule) -> None:
    found = [
        f"{name}:{line}: {what}"
        for path in handwritten()
        for name in [path.relative_to(ROOT).as_posix()]
        for line, what in check(name, parsed(path))
    ]
    assert not found, "\n" + "\n".join(found)


def too_long(files: Iterable[tuple[str, str]]) -> list[str]:
    counted = ((name, len(text.splitlines())) for name, text in files)
    return [f"{name}: {lines} lines, at most {MAX_FILE_LINES}" for name, lines in counted if lines > MAX_FILE_LINES]


def test_files_are_short() -> None:
    found = too_long((p.relative_to(ROOT).as_posix(), p.read_text(encoding="utf-8")) for p in handwritten())
    assert not found, "\n" + "\n".join(found)


# --- the rules can fail

LONG = "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES

BAD = [
    ("protocol_is_pure", "protocol/x.py", "import time"),
    ("protocol_is_pure", "protocol/x.py", "from random import Random"),
    ("protocol_is_pure", "protocol/deep/x.py", "import asyncio.events"),
    ("protocol_is_pure", "protocol/x.py", "def f():\n    import socket"),
    ("protocol_is_pure", "protocol/x.py", "import os.path"),
    ("protocol_is_pure", "protocol/x.py", "import threading"),
    ("protocol_is_pure", "protocol/x.py", "import numpy"),
    ("protocol_is_pure", "protocol/x.py", "from node.ports import Clock"),
    ("protocol_is_pure", "protocol/x.py", "__import__('time')"),
    ("protocol_is_pure", "protocol/x.py", "import datetime as d\nd.datetime.now()"),
    ("protocol_is_pure", "protocol/x.py", "from datetime import datetime as D\nD.now()"),
    ("protocol_is_pure", "protocol/x.py", "from datetime import date\ndate.today()"),
    ("protocol_is_pure", "protocol/x.py", "print('here')"),
    ("adapters_keep_their_library", "node/runtime.py", "import hivemind"),
    ("adapters_keep_their_library", "node/directory_cache.py", "from hivemind.dht import DHTNode"),
    ("adapters_keep_their_library", "node/runtime.py", "import grpc.aio"),
    ("adapters_keep_their_library", "node/stage/block.py", "from grpc import aio"),
    ("adapters_keep_their_library", "node/ports.py", "if TYPE_CHECKING:\n    from torch import Tensor"),
    ("adapters_keep_their_library", "node/export.py", "from safetensors.torch import save_file"),
    ("adapters_keep_their_library", "node/stage/block.py", "import transformers"),
    ("adapters_keep_their_library", "node/cli/main.py", "import importlib\nimportlib.import_module('torch')"),
    ("adapters_keep_their_library", "tests/unit/test_x.py", "import torch"),
    ("adapters_keep_their_library", "tests/sim/test_x.py", "from grpc import aio"),
    ("generated_code_stays_in_transport", "node/runtime.py", "from node.transport import swarm_pb2"),
    ("generated_code_stays_in_transport", "node/runtime.py", "from .transport.swarm_pb2_grpc import Stub"),
    ("generated_code_stays_in_transport", "tests/unit/test_x.py", "import node.transport.swarm_pb2 as pb"),
    ("reference_is_independent", "tests/numerics/reference.py", "import protocol.manifest"),
    ("reference_is_independent", "tests/numerics/reference_loop.py", "from node.stage import blocks"),
    ("nothing_is_unpickled", "tests/unit/test_x.py", "import pickle"),
    ("nothing_is_unpickled", "node/x.py", "from cloudpickle import loads"),
    ("nothing_is_unpickled", "node/stage/x.py", "import torch as t\nt.load(f)"),
    ("nothing_is_unpickled", "node/stage/x.py", "from torch import load"),
    ("nothing_is_unpickled", "node/x.py", "np.load(f, allow_pickle=True)"),
    ("functions_are_short", "node/x.py", LONG),
    ("functions_are_short", "node/x.py", "class C:\n    async " + LONG.replace("\n", "\n    ").rstrip()),
]

GOOD = [
    (
        "protocol_is_pure",
        "protocol/x.py",
        "import json\nfrom pydantic import Field\nfrom protocol.ids import Ballot",
    ),
    ("protocol_is_pure", "protocol/x.py", "from .ids import Ballot\nfrom . import ids"),
    ("protocol_is_pure", "protocol/x.py", "from datetime import timedelta\nself.now()\nclock.now()"),
    ("protocol_is_pure", "node/x.py", "import time"),
    ("adapters_keep_their_library", "node/directory.py", "from hivemind.dht import DHTNode"),
    ("adapters_keep_their_library", "node/directory/records.py", "import hivemind"),
    ("adapters_keep_their_library", "node/transport/server.py", "import grpc"),
    ("adapters_keep_their_library", "node/stage/block.py", "import torch.nn.functional as F"),
    ("adapters_keep_their_library", "tests/numerics/reference.py", "import torch, transformers"),
    ("adapters_keep_their_library", "node/x.py", "import grpc_tools, safetensors.numpy"),
    ("generated_code_stays_in_transport", "node/transport/codec.py", "from node.transport import swarm_pb2"),
    ("reference_is_independent", "tests/numerics/test_exact.py", "import node, protocol"),
    ("nothing_is_unpickled", "node/x.py", "import json\njson.load(f)\nnp.load(f, allow_pickle=False)"),
    ("functions_are_short", "node/x.py", LONG.removesuffix("    x = 1\n")),
]


@pytest.mark.parametrize(("name", "path", "source"), BAD, ids=lambda value: str(value)[:40])
def test_rule_objects(name: str, path: str, source: str) -> None:
    assert list(RULES[name](path, ast.parse(source)))


@pytest.mark.parametrize(("name", "path", "source"), GOOD, ids=lambda value: str(value)[:40])
def test_rule_lets_pass(name: str, path: str, source: str) -> None:
    assert not list(RULES[name](path, ast.parse(source)))


def test_every_rule_has_snippets() -> None:
    assert {name for name, _, _ in BAD} == {name for name, _, _ in GOOD} == set(RULES)


def test_a_long_file_is_found() -> None:
    assert not too_long([("node/x.py", "x = 1\n" * MAX_FILE_LINES)])
    assert too_long([("node/x.py", "x = 1\n" * (MAX_FILE_LINES + 1))])


def test_the_rules_see_files() -> None:
    assert ROOT / "protocol" / "__init__.py" in handwritten()

"""A mutant in memory: the changed function takes the place of the one that is imported already, wherever it was imported to."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import CodeType
from typing import Any

from tests.mutants.edits import Mutant


def swap(mutant: Mutant, root: Path) -> None:
    """Let the mutant loose in this process, for good. What was computed with the function before is forgotten."""
    path = root / mutant.path
    changed = compile(ast.parse(mutant.apply(path.read_bytes())), str(path), "exec", dont_inherit=True)
    module = importlib.import_module(mutant.path.removesuffix(".py").replace("/", "."))
    _function_of(module, mutant.function).__code__ = _code_of(changed, mutant.function)
    packages = {mutant.path.partition("/")[0], "node"}
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        for value in list(vars(sys.modules[name]).values()):
            forget = getattr(value, "cache_clear", None)
            if callable(forget):
                forget()


def _function_of(module: Any, name: str) -> Callable[..., Any]:
    """The function itself, out of whatever is wrapped around it."""
    owner, _, method = name.rpartition(".")
    found = vars(getattr(module, owner) if owner else module)[method]
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, cached_property):
        found = found.func
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    found = inspect.unwrap(found)
    assert inspect.isfunction(found), f"{module.__name__} {name} is a {type(found).__name__}"
    return found


def _code_of(module: CodeType, name: str) -> CodeType:
    code = module
    for part in name.split("."):
        (code,) = [const for const in code.co_consts if isinstance(const, CodeType) and const.co_name == part]
    return code

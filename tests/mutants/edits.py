"""Where a module can be made wrong in one place: comparisons flipped, checks dropped, constants swapped.

Own code because the two kept libraries do not fit (looked at: mutmut 3.8, cosmic-ray 8.7). mutmut rewrites all functions at
once into a folder of the working tree and has no runner but pytest; cosmic-ray edits the working tree in place and brings 17
packages, SQLAlchemy among them. Neither draws mutants by a seed, and both change sentences, which nobody should test. What is
needed of an engine is this file.

Not generated, because no test can or should tell the difference: docstrings, f-strings and messages of errors, what goes into a
`Note` or a sentence, `assert`s, `__repr__`, numbers at the head of a module (bounds and patience are choices) and as good as
infinite ones, and whether a comparison of times is strict.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TREE = "protocol"
DATA_ONLY = ("presets.py", "version.py", "__init__.py")
FLIPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
EDGES: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
CONTINUOUS = re.compile(r"\b(now|waited|ago|age|since|\w*_s|\w*_at|\w*seconds\w*|\w*norm\w*|\w*loss\w*|\w*scale\w*|\d+\.\d+)\b")
"""Words of a comparison that is about times or other measured quantities."""
SAID = ("Note", "Say", "_say", "say", "stand", "ValueError")
SILENT_FUNCTIONS = ("__repr__", "__str__")
AS_GOOD_AS_INFINITE = 1e6


Edit = tuple[ast.expr, str, str, str]
"""(what is replaced, by what, kind, the change in words)"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One edit: bytes `start` to `end` of the file become `after`."""

    path: str
    """From the root of the tree."""
    function: str
    """`Class.method`."""
    line: int
    start: int
    end: int
    before: str
    after: str
    kind: str
    what: str
    """The change in words, one line."""
    name: str = ""
    """Of those that are always tried."""

    @property
    def id(self) -> str:
        """The same as long as the function is, wherever it stands in its file."""
        return f"{self.path} {self.function}: {self.what}"

    def apply(self, source: bytes) -> bytes:
        """The file with the edit in it. Fails if it does not hold what was to be changed."""
        found = source[self.start : self.end].decode()
        assert found == self.before, f"{self.path}:{self.line} holds {found!r} where {self.before!r} should be"
        return source[: self.start] + self.after.encode() + source[self.end :]


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Everything that can be made wrong in one place of the file."""
    lines = source.splitlines(keepends=True)
    begins = [0]
    for line in lines:
        begins.append(begins[-1] + len(line))
    found = []
    for name, function in functions_of(ast.parse(source)):
        for node, after, kind, what in _edits(function):
            start, end = begins[node.lineno - 1] + node.col_offset, begins[_end_line(node) - 1] + _end_column(node)
            before, around = source[start:end].decode(), lines[node.lineno - 1].decode().strip()
            told = f"{what} in `{around}`" if isinstance(node, ast.Constant) else what
            found.append(Mutant(path, name, node.lineno, start, end, before, after, kind, told))
    return sorted(found, key=lambda m: (m.start, m.end, m.after))


def _end_line(node: ast.expr) -> int:
    assert node.end_lineno, "the parser knows where everything ends"
    return node.end_lineno


def _end_column(node: ast.expr) -> int:
    assert node.end_col_offset is not None, "the parser knows where everything ends"
    return node.end_col_offset


def functions_of(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods with their names; those inside of a function belong to it."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{f.name}", f) for f in node.body if isinstance(f, ast.FunctionDef))


def _edits(function: ast.FunctionDef) -> Iterator[Edit]:
    """Everything in the body."""
    if function.name in SILENT_FUNCTIONS:
        return
    for statement in function.body:
        for node in _walk(statement):
            if isinstance(node, ast.Compare):
                yield from _comparisons(node)
            elif isinstance(node, ast.BoolOp):
                yield from _conditions(node)
            elif isinstance(node, ast.If):
                yield from _checks(node)
            elif isinstance(node, ast.Constant):
                yield from _constants(node)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that count, outermost first."""
    if isinstance(node, ast.JoinedStr | ast.Assert) or (isinstance(node, ast.Call) and _name_of(node.func) in SAID):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _walk(child)


def _name_of(called: ast.expr) -> str:
    return called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""


def _comparisons(node: ast.Compare) -> Iterator[Edit]:
    tables = [FLIPS] if CONTINUOUS.search(ast.unparse(node)) else [FLIPS, EDGES]
    for index, operator in enumerate(node.ops):
        for table in tables:
            if type(operator) in table:
                other = copy.deepcopy(node)
                other.ops[index] = table[type(operator)]()
                yield node, f"({ast.unparse(other)})", "comparison", f"`{ast.unparse(other)}` for `{ast.unparse(node)}`"


def _conditions(node: ast.BoolOp) -> Iterator[Edit]:
    """One operand of an `and` or an `or` is left out."""
    for index in range(len(node.values)):
        rest = node.values[:index] + node.values[index + 1 :]
        left = ast.unparse(rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))
        yield node, f"({left})", "check", f"without `{ast.unparse(node.values[index])}` in `{ast.unparse(node)}`"


def _checks(node: ast.If) -> Iterator[Edit]:
    """`if ...: return` never does."""
    if not node.orelse and isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break):
        yield node.test, "False", "check", f"never `if {ast.unparse(node.test)}`"


def _constants(node: ast.Constant) -> Iterator[Edit]:
    value, other = node.value, ""
    if isinstance(value, bool):
        other = str(not value)
    elif isinstance(value, int):
        other = str(0 if value == 1 else value + 1)
    elif isinstance(value, float) and value < AS_GOOD_AS_INFINITE:
        other = str(2.0 * value or 1.0)
    if other:
        yield node, other, "constant", f"{other} for {value!r}"


def all_mutants(root: Path) -> list[Mutant]:
    """Everything that can be made wrong in one place of `protocol/`."""
    paths = sorted(path for path in (root / TREE).glob("*.py") if path.name not in DATA_ONLY)
    return [m for path in paths for m in mutants_of(path.relative_to(root).as_posix(), path.read_bytes())]


def choose(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """`count` of them (or all), equally many of each kind as far as there are. Who is drawn is drawn again, as far as may be,
    when the code has changed elsewhere."""
    twins: Counter[str] = Counter()
    lots: dict[str, list[tuple[str, Mutant]]] = {}
    for mutant in mutants:
        lot = f"{seed} {mutant.id} {twins[mutant.id] or ''}"
        twins[mutant.id] += 1
        lots.setdefault(mutant.kind, []).append((hashlib.sha256(lot.encode()).hexdigest(), mutant))
    rows = [[mutant for _, mutant in sorted(lots[kind], key=lambda row: row[0])][::-1] for kind in sorted(lots)]
    chosen: list[Mutant] = []
    while any(rows) and len(chosen) < count:
        for row in rows:
            if row and len(chosen) < count:
                chosen.append(row.pop())
    return chosen

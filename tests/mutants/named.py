"""Five mutants that are tried whatever the draw: each takes away something without which the protocol would not be one."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.edits import Mutant, functions_of


@dataclass(frozen=True, slots=True)
class Named:
    """In one function of one file, text that must stand there once is replaced."""

    name: str
    path: str
    function: str
    before: str
    after: str
    what: str

    def locate(self, source: bytes) -> Mutant:
        """The edit. `ValueError` if the code has moved."""
        where = f"mutant '{self.name}': {self.path}"
        function = dict(functions_of(ast.parse(source))).get(self.function)
        if function is None:
            raise ValueError(f"{where} has no {self.function} any more; say in tests/mutants/named.py where it went")
        lines = source.splitlines(keepends=True)
        begin, end = (sum(map(len, lines[:n])) for n in (function.lineno - 1, function.end_lineno))
        body, before = source[begin:end], self.before.encode()
        if body.count(before) != 1:
            raise ValueError(f"{where} {self.function} holds `{self.before}` {body.count(before)} times, not once")
        start = begin + body.index(before)
        line = source.count(b"\n", 0, start) + 1
        span = (start, start + len(before))
        return Mutant(self.path, self.function, line, *span, self.before, self.after, "named", self.what, self.name)


NAMED = (
    Named(
        "no dedupe",
        "protocol/seat.py",
        "Seat.take",
        "(op, microbatch) in attempt.seen or ",
        "",
        "a payload that comes twice is computed twice",
    ),
    Named(
        "no ballot check",
        "protocol/acceptor.py",
        "Acceptor.follow",
        "ballot < self.promised",
        "False",
        "whoever speaks is followed, whatever ballot was promised",
    ),
    Named(
        "apply before all reduced",
        "protocol/ledger.py",
        "Ledger.complete",
        "for s in row",
        "for s in row[:1]",
        "one replica of each stage that holds the sum is enough for a commit",
    ),
    Named(
        "stale attempt accepted",
        "protocol/workbench.py",
        "Workbench._matches",
        "(header.ballot, header.step, header.attempt, header.parent) == (o.ballot, o.step, o.attempt, o.parent)",
        "(header.ballot, header.step, header.parent) == (o.ballot, o.step, o.parent)",
        "payloads of a voided attempt enter the next one",
    ),
    Named(
        "lapse ignored",
        "protocol/view.py",
        "View.lapsed",
        "self.silent_s(peer, now) > self._lapse_s",
        "False",
        "nobody is ever silent for too long",
    ),
)


def named_mutants(root: Path) -> list[Mutant]:
    """All of them, where the code holds them now."""
    return [named.locate((root / named.path).read_bytes()) for named in NAMED]

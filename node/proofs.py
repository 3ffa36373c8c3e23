"""What a node can show of its work, and the roots of past steps against which claims of others are checked: a file a run.

Appended line by line (JSON), so that a kill costs at most the last line; rewritten with the newest when it has grown to twice
what is kept. What can no longer be shown step by step stays in a sum. A file that is damaged counts as far as it can be read,
and a claim only if it leads to its root: the file is a notebook, the commits say what is true.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from protocol.counted import Claim, claim_of, verify
from protocol.ids import PeerId

MAX_STEPS = 4096
"""Of so many of the newest steps the roots are kept, and the claims."""
MAX_LINES = 4 * MAX_STEPS
MAX_SHOWN, MAX_SHOWN_CLAIMS = 512, 1024
"""Steps in one answer to an observer, and claims: of so many steps as fit."""
MAX_NUMBER = 1 << 62
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Sum:
    """Of claims that are not kept any more."""

    steps: int = 0
    microbatches: int = 0
    first_step: int = 0
    tokens: Counter[int] = field(default_factory=Counter)
    """By stage."""

    def add(self, step: int, claims: Mapping[int, Claim]) -> None:
        """One step, by stage."""
        self.steps += 1
        self.first_step = self.first_step or step
        for stage, claim in claims.items():
            self.microbatches += int(claim.microbatches, 16).bit_count()
            self.tokens[stage] += claim.tokens

    def line(self) -> list[Any]:
        """For the file."""
        return ["sum", self.steps, self.microbatches, self.first_step, sorted(self.tokens.items())]

    @classmethod
    def of(cls, told: list[Any]) -> Sum:
        """Raises `ValueError` or `TypeError`."""
        steps, microbatches, first, tokens = told
        numbers = [steps, microbatches, first, *(number for row in tokens for number in row)]
        if not all(type(n) is int and 0 <= n < MAX_NUMBER for n in numbers):
            raise ValueError("no sum")
        return cls(steps, microbatches, first, Counter(dict(tokens)))


class Proofs:
    """Fed with what the node notes."""

    def __init__(self, path: Path | None, run: str, peer: PeerId) -> None:
        self._path, self._run, self._peer = path, run, peer
        self._roots: dict[int, str] = {}
        self._claims: dict[int, dict[int, Claim]] = {}
        self._sum = Sum()
        self._parted_at: int | None = None
        self._fd = -1
        self._num_lines = self._least_lines = 0
        self._sums: dict[str, Any] | None = None

    @classmethod
    def open(cls, path: Path, run: str, peer: PeerId) -> Proofs:
        """Go on with what an earlier start left. Where the file cannot be had that is said, and all stays in memory."""
        proofs = cls(path, run, peer)
        try:
            data = path.read_bytes() if path.exists() else b""
            proofs._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            log.warning("proofs of work are not kept: %s: %s", path, error.strerror)
            return proofs
        for line in data.split(b"\n"):
            proofs._read(line)
        if data and not data.endswith(b"\n"):
            proofs._append(b"\n")
        proofs._look()
        return proofs

    def close(self) -> None:
        """Nothing is kept any more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # ---- what happens ----

    def observe(self, type_: str, fields: Mapping[str, Any]) -> None:
        """One note of the node."""
        told = self._heard.get(type_)
        if told:
            told(self, fields)

    def _decided(self, fields: Mapping[str, Any]) -> None:
        step, root = fields["step"], fields.get("root")
        if root and self._roots.get(step) != root:
            self._enter(["root", step, root])

    def _counted(self, fields: Mapping[str, Any]) -> None:
        self._decided(fields)
        known = {name: value for name, value in fields.items() if name != "root"}
        claim = Claim(**known | {"path": tuple(fields["path"])})
        self._enter(["claim", fields["root"], claim.text()])

    def _went_back(self, fields: Mapping[str, Any]) -> None:
        self._enter(["back", fields["step"]])

    def _parted(self, fields: Mapping[str, Any]) -> None:
        self._parted_at = fields["step"]

    def _yielded(self, _fields: Mapping[str, Any]) -> None:
        """What the lineage did since it parted counts for nothing. Where the other one parted is not known here."""
        if self._parted_at is not None:
            self._enter(["back", self._parted_at])
            self._parted_at = None

    _heard: ClassVar[Mapping[str, Callable[[Proofs, Mapping[str, Any]], None]]] = {
        "decided": _decided,
        "counted": _counted,
        "rolled_back": _went_back,
        "forked": _parted,
        "yielded": _yielded,
    }

    # ---- the notebook ----

    def _enter(self, line: list[Any]) -> None:
        self._take(line)
        self._append(_encode(line))
        self._look()

    def _read(self, line: bytes) -> None:
        """One line of the file; what cannot be read is passed over."""
        try:
            told = json.loads(line) if line else None
            if isinstance(told, list) and told:
                self._num_lines += 1
                self._take(told)
        except (ValueError, TypeError, RecursionError):
            return

    def _take(self, line: list[Any]) -> None:
        """Raises `ValueError` or `TypeError` where it is no line of ours."""
        self._sums = None
        what, *told = line
        if what == "root":
            step, root = told
            self._know(step, root)
        elif what == "claim":
            root, text = told
            self._claim(claim_of(text), root)
        elif what == "back":
            (step,) = told
            self._back(int(step))
        elif what == "sum":
            self._sum = Sum.of(told)

    def _know(self, step: int, root: str) -> None:
        if type(step) is not int or not 0 < step < MAX_NUMBER or type(root) is not str or len(root) > 64:
            raise ValueError("no root")
        if self._roots.get(step) != root:
            self._back(step - 1)  # steps are decided in their order: what comes after it was decided in another lineage
            self._roots[step] = root

    def _claim(self, claim: Claim, root: str) -> None:
        is_mine = (claim.run, claim.peer) == (self._run, self._peer)
        if not is_mine or not verify(claim, root) or self._roots.get(claim.step) != root:
            raise ValueError("no claim of this node")
        self._claims.setdefault(claim.step, {})[claim.stage] = claim

    def _back(self, step: int) -> None:
        """What came after it is given up."""
        self._roots = {at: root for at, root in self._roots.items() if at <= step}
        self._claims = {at: claims for at, claims in self._claims.items() if at <= step}

    def _look(self) -> None:
        """Keep what is kept, in memory and in the file."""
        while len(self._roots) > MAX_STEPS:
            step = next(iter(self._roots))
            del self._roots[step]
            if step in self._claims:
                self._sum.add(step, self._claims.pop(step))
        if self._num_lines > max(MAX_LINES, 2 * self._least_lines) and self._fd >= 0:
            self._rewrite()

    def _append(self, data: bytes) -> None:
        if self._fd < 0:
            return
        self._num_lines += 1
        try:
            is_whole = os.write(self._fd, data) == len(data)
            reason = "" if is_whole else "no space left for a whole line"
        except OSError as error:
            reason = error.strerror or str(error)
        if reason:
            log.warning("proofs of work are not kept any more: %s: %s", self._path, reason)
            self.close()

    def _rewrite(self) -> None:
        assert self._path, "only a file is rewritten"
        lines = [self._sum.line()]
        for step, root in self._roots.items():
            lines.append(["root", step, root])
            lines += [["claim", root, claim.text()] for claim in self._claims.get(step, {}).values()]
        whole = self._path.with_suffix(".new")
        try:
            whole.write_bytes(b"".join(map(_encode, lines)))
            whole.replace(self._path)
            self.close()
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            log.warning("proofs of work are not kept any more: %s: %s", self._path, error.strerror)
            self.close()
        self._num_lines = self._least_lines = len(lines)

    # ---- what is shown ----

    def sums(self) -> dict[str, Any]:
        """For `/status`: what the commits count of this node, over all its starts in this run. `shown`: of how many steps there
        is still a proof, the oldest of them `shown_from`."""
        if self._sums is None:
            whole = Sum(self._sum.steps, self._sum.microbatches, self._sum.first_step, Counter(self._sum.tokens))
            for step, claims in self._claims.items():
                whole.add(step, claims)
            stages = [{"stage": stage, "tokens": tokens} for stage, tokens in sorted(whole.tokens.items())]
            self._sums = {"steps": whole.steps, "microbatches": whole.microbatches, "tokens": sum(whole.tokens.values())}
            self._sums |= {"stages": stages, "first_step": whole.first_step or None, "shown": len(self._claims)}
            self._sums["shown_from"] = next(iter(self._claims), None)
        return self._sums

    def claims(self, after: int) -> list[str]:
        """Of steps after this one, oldest first, of at most `MAX_SHOWN` of them; each step whole."""
        found: list[Claim] = []
        for step in [step for step in self._claims if step > after][:MAX_SHOWN]:
            if found and len(found) + len(self._claims[step]) > MAX_SHOWN_CLAIMS:
                break
            found += self._claims[step].values()
        return [claim.text() for claim in found]

    def roots(self, after: int) -> list[tuple[int, str]]:
        """Likewise: the roots of commits that this node knows."""
        return [(step, root) for step, root in self._roots.items() if step > after][:MAX_SHOWN]


def _encode(line: list[Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"

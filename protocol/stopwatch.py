"""How long a stage was away, part by part: times of one coordinator's clock, told with the first commit that has it again.
Who takes over knows the parts from then on; a part that nobody saw whole is not told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from protocol.chain import Chain
from protocol.commands import Note


class Stopwatch:
    """Of one coordinator. All seconds; a stage that is lost again before its first commit keeps the parts that are over."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._parts: dict[int, dict[str, float]] = {}
        self._whole_at: dict[int, float] = {}

    def lost(self, stage: int, silent_s: float) -> None:
        """The last holder was given up, after nothing had been heard of it for so long."""
        self._parts.setdefault(stage, {}).setdefault("detect_s", silent_s)

    def decides(self, stage: int, waited_s: float, grace_s: float) -> None:
        """What becomes of the stage is proposed; it has been waited for, and `grace_s` of that for its holder."""
        parts = self._parts.setdefault(stage, {})
        if "grace_s" not in parts:
            parts["grace_s"] = min(waited_s, grace_s)
            parts["wait_for_newcomer_s"] = max(0.0, waited_s - grace_s)

    def look(self, hollow: Iterable[int], now: float) -> None:
        """These stages have no state at present; the others that were regained can train."""
        gone = set(hollow)
        whole = {stage: self._whole_at.get(stage, now) for stage in self._chain.regained}
        self._whole_at = {stage: at for stage, at in whole.items() if stage not in gone}

    def committed(self, now: float) -> list[Note]:
        """A step is decided in which everything regained has a part; the chain does not hold it yet."""
        notes = recovered(self._chain, {stage: self._all_parts(stage, now) for stage in self._chain.regained})
        self._parts.clear()
        self._whole_at.clear()
        return notes

    def _all_parts(self, stage: int, now: float) -> dict[str, float]:
        whole_at = self._whole_at.get(stage)
        last = {} if whole_at is None else {"first_commit_s": now - whole_at}
        return self._parts.get(stage, {}) | last


def recovered(chain: Chain, parts: Mapping[int, Mapping[str, float]]) -> list[Note]:
    """One note for each stage that the swarm got back since the last commit. Only who decides the next one says so."""
    return [
        Note(
            "recovered",
            {
                "stage": stage,
                "rung": regain.rung,
                "peer": regain.peer,
                "generation": chain.generations[stage],
                "step": chain.step + 1,
                **parts.get(stage, {}),
            },
        )
        for stage, regain in sorted(chain.regained.items())
    ]

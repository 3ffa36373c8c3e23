"""Since when a stage has no holder: every member that may have to coordinate sees it, so that a takeover does not begin the
grace of a lost stage anew."""

from __future__ import annotations

from protocol.chain import Chain
from protocol.records import Rebuild, Roster


class Vacancies:
    """Reads the chain; `look` is to be called again and again. Where records were missed it knows nothing: a stage that is
    vacant may have had a holder meanwhile."""

    def __init__(self, chain: Chain) -> None:
        self._chain, self._head = chain, chain.head
        self.since: dict[int, float] = {}
        """By stage, the time at which it was first seen to have none."""

    def look(self, now: float) -> None:
        """The chain may have grown."""
        chain, records = self._chain, self._chain.after(self._head)
        if chain.head == self._head:
            return
        self._head = chain.head
        for decided in records or ():
            record = decided.record
            filled = set(self.since)  # a step is committed, or gone back to, only with holders of all stages
            if isinstance(record, Roster | Rebuild):
                filled = {s.stage for s in record.joins if s.role != "learner"}
            self.since = {stage: at for stage, at in self.since.items() if stage not in filled}
        before = {} if records is None else self.since
        vacant = [stage for stage in range(len(chain.state_ids)) if not chain.holders(stage)]
        self.since = {stage: before.get(stage, now) for stage in vacant}

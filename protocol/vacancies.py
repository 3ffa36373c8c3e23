"""Since when a stage has no holder: every member that may have to coordinate sees it, so that a takeover does not begin the
grace of a lost stage anew."""

from __future__ import annotations

from protocol.chain import Chain
from protocol.records import Commit, Rebuild, Roster


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
        left = set(self.since)
        """Stages that have no holder, or that somebody left."""
        for decided in records or ():
            record = decided.record
            filled = set(self.since)  # a step is committed, or gone back to, only with holders of all stages
            if isinstance(record, Roster | Rebuild):
                filled = {s.stage for s in record.joins if s.role != "learner"}
            left |= {s.stage for s in record.leaves} if isinstance(record, Roster) else set()
            self.since = {stage: at for stage, at in self.since.items() if stage not in filled}
        narrow = records is not None and all(isinstance(decided.record, Commit | Roster) for decided in records)
        looked_at = sorted(left) if narrow else range(len(chain.state_ids))
        before = {} if records is None else self.since
        vacant = [stage for stage in looked_at if not chain.holders(stage)]
        self.since = {stage: before.get(stage, now) for stage in vacant}

"""Mutants that nothing can tell from the code, or that need not be told from it, each with the reason.

The key is what `--list` and the table call a mutant. One that the code does not yield any more fails a unit test.
"""

EXPLAINED: dict[str, str] = {
    "protocol/coordinator.py Coordinator._hurry: without `seating` in `seating and seating.role != 'active' and"
    " self._urged.is_due((stage, member.peer), now)`": "who is missing is one of those seated, so there is a seating;"
    " said for the type checker",
    "protocol/follower.py Follower._meet: never `if not joins`": "saves a plan: where nobody joins, nobody is"
    " met for the first time",
    "protocol/placement.py Placement.strength: 7 for 6 in `return round(self._speeds.throughput(own), 6), len(serving)`": "how"
    " many digits of a speed count is a choice; either number hides the order in which speeds were added",
    "protocol/workbench.py Workbench.__init__: 1 for 0 in `self._voided: tuple[Ballot, int, int] = (NO_BALLOT, 0, 0)`": "every"
    " ballot that somebody leads with is above NO_BALLOT, whatever the step and the attempt",
}

"""A replica that has siblings dies, hangs or is cut off at each point of a step: its work goes to them inside the attempt, each
microbatch counts once (the invariants, after every event), and the cost is what was lost. What it costs without the reroute
is measured beside it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest

from node.sim.faults import Phase
from node.sim.machine import BrokenError
from node.sim.rerouting import FAULTS, PHASES, Fault, Rerouted, Rerouting

MORE_SEEDS = range(1000, 1120)
COMPARED = range(2000, 2012)
LOSSES: tuple[Fault, ...] = ("crash", "silent", "two")
IN_TIME = ("forward", "backward", "accumulated", "reduce", "reduced")
CELLS: tuple[tuple[Fault, Phase], ...] = (
    ("crash", "backward"),
    ("silent", "forward"),
    ("freeze", "accumulated"),
    ("two", "forward"),
    ("cut", "accumulated"),
)


def live_through(lives: Sequence[Rerouting], tally: Counter[str]) -> list[Rerouted]:
    """Run them all; fail at the end with what to type for each that broke."""
    lived, broken = [], []
    for life in lives:
        try:
            lived.append(life.run())
        except BrokenError as error:
            broken.append(f"{error}\n  {'; '.join(error.__notes__)}")
    for one in lived:
        tally.update({f"reroutes {what}": one.counts[what] for what in ("excluded", "relieved")})
    tally.update({"reroute seeds": len(lives)})
    told = "\n".join(broken[:5])
    assert not broken, f"{len(broken)} of {len(lives)} broke:\n{told}"
    return lived


def table(lived: Sequence[Rerouted]) -> dict[tuple[str, str], tuple[float, float, float]]:
    """Per cell: attempts, passes relative to those of an undisturbed step, seconds to the commit; means. Printed, too."""
    cells: defaultdict[tuple[str, str], list[Rerouted]] = defaultdict(list)
    for one in lived:
        cells[one.fault, one.phase].append(one)
    found = {}
    for cell, row in sorted(cells.items()):
        count = len(row)
        passes = sum(x.computed / x.least for x in row) / count
        found[cell] = (sum(x.attempts for x in row) / count, passes, sum(x.seconds for x in row) / count)
        means = "attempts {:.2f}, passes x{:.2f}, {:.1f} s".format(*found[cell])
        print(f"{cell[0]:>7} {cell[1]:<12} {count:3} runs: {means}")
    return found


def test_work_goes_to_siblings_inside_the_attempt(tally: Counter[str]) -> None:
    lived = live_through([Rerouting(seed, cell) for seed, cell in enumerate(CELLS)], tally)
    for one in lived:
        if one.fault in LOSSES:
            assert one.attempts == 1, f"{one.fault} in {one.phase} voided the attempt"
            assert one.counts["excluded"] >= 1
            assert one.computed < 1.3 * one.least
    assert sum(one.counts["relieved"] for one in lived), "nobody who lived was led around"


@pytest.mark.full
@pytest.mark.timeout(600)
def test_more_work_goes_to_siblings(tally: Counter[str]) -> None:
    lived = live_through([Rerouting(seed) for seed in MORE_SEEDS], tally)
    assert set(table(lived)) == {(fault, phase) for fault in FAULTS for phase in PHASES}
    losses = [one for one in lived if one.fault in LOSSES and one.phase in IN_TIME]
    kept = [one for one in losses if one.attempts == 1]
    assert len(kept) >= 0.95 * len(losses), f"{len(losses) - len(kept)} of {len(losses)} attempts were voided"
    assert sum(one.counts["relieved"] for one in lived) >= 10


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_reroute_costs_less_than_a_void(tally: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same swarms and faults, once as they are and once with everybody needed: then each loss voids the attempt."""
    cells = [(seed, (LOSSES[seed % 2], IN_TIME[seed // 2 % 3])) for seed in COMPARED]
    with_it = live_through([Rerouting(seed, cell) for seed, cell in cells], tally)
    monkeypatch.setattr("protocol.detours.why_needed", lambda *_: "nobody is to be spared")
    monkeypatch.setattr("protocol.detours.end_to_spare", lambda *_: None)
    without = live_through([Rerouting(seed, cell) for seed, cell in cells], tally)
    print("as it is:")
    table(with_it)
    print("everything again:")
    table(without)
    assert all(one.attempts > 1 for one in without)
    extra = [sum(one.computed - one.least for one in lived) for lived in (with_it, without)]
    assert extra[0] < 0.25 * extra[1], (
        f"passes beyond those of an undisturbed step: {extra[0]} with the reroute, {extra[1]} without"
    )


def test_a_sum_over_what_was_there_before_it_began_anew_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator takes reports of the sum before for those of the new one."""
    monkeypatch.setattr("protocol.ledger.Ledger.sum_anew", lambda self, stage: self.started.pop(stage))
    life = Rerouting(0, ("silent", "reduce"))
    with pytest.raises(BrokenError):
        life.run()


def test_work_that_is_given_to_two_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.reroute._keep", lambda *_: None)
    life = Rerouting(9, CELLS[4])
    with pytest.raises(BrokenError, match=r"S2.* belongs to"):
        life.run()

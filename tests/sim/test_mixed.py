"""Everything at once: swarms of 4 to 32 nodes, all policies, all kinds of mishaps mixed. `node.sim.mixed` says what must come
of it; each kind of fault is data, and counted where it showed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from node.sim.mishaps import MISHAPS
from node.sim.mixed import Mixed, live_mixed
from node.sim.mixture import KINDS, Mixture, Options, kinds_of
from node.sim.soak import Tally, live

SEEDS = range(12)
MORE_SEEDS = range(300_000, 302_000)
CHUNK = 200
"""So many in one test."""
MAX_TOLD = 5


def live_through(seeds: range, tally: Counter[str]) -> Tally:
    """Run them all; fail at the end with what to type for each that broke."""
    every = [live(seed) for seed in seeds]
    broken = [f"{lived['broken']}\n  replay: {lived['replay']}" for lived in every if "broken" in lived]
    told = "\n".join(broken[:MAX_TOLD])
    assert not broken, f"{len(broken)} of {len(seeds)} seeds broke:\n{told}"
    total = Tally()
    for lived in every:
        total.add(lived)
    count(total.told(), tally)
    return total


@pytest.mark.timeout(120)
def test_everything_at_once(tally: Counter[str]) -> None:
    total = live_through(SEEDS, tally)
    assert total.commits >= 8 * len(SEEDS)
    assert len(total.faults_fired) >= len(KINDS) - 4, f"too few kinds: {total.faults_fired}"
    assert total.verdicts["went on"] >= 0.8 * len(SEEDS)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", MORE_SEEDS[::CHUNK])
def test_more_of_everything(first: int, tally: Counter[str]) -> None:
    total = soak(first, CHUNK, 880)
    count(total, tally)
    for kind in KINDS:
        assert total["faults_fired"][kind] >= 10, f"{kind} fired {total['faults_fired'][kind]} times only"
    for rung in ("recovery", "returned", "promotion", "handover"):
        assert total["recoveries"].get(rung), f"no stage came back by {rung}"
    assert total["verdicts"]["went on"] >= 0.8 * CHUNK
    assert 0.2 < total["goodput"] < 1.0


def soak(first: int, seeds: int, limit_s: float) -> dict[str, Any]:
    """What `make sim-soak` tells. Its processes make way for whatever else runs, and use both processors where nothing does:
    swarms of processes often wait."""
    words = ["nice", "-n", "10", sys.executable, "-m", "node.sim.soak", "--seeds", str(seeds), "--from", str(first)]
    done = subprocess.run([*words, "--workers", "2"], capture_output=True, text=True, timeout=limit_s, check=False)
    assert done.returncode == 0, done.stderr[:8000]
    (line,) = done.stdout.splitlines()
    told: dict[str, Any] = json.loads(line)
    assert (told["seeds"], told["failures"]) == (seeds, 0)
    return told


def count(told: dict[str, Any], tally: Counter[str]) -> None:
    """For the end of the session."""
    tally.update({f"mixed {what}": times for what, times in told["faults_fired"].items()})
    tally.update({f"mixed, rung {rung}": times for rung, times in told["recoveries"].items()})
    tally["mixed seeds"] += told["seeds"]


def test_the_seed_is_all_that_a_mixed_run_depends_on() -> None:
    first = live_mixed(5)
    assert first == live_mixed(5)
    assert live_mixed(17) != first


def test_the_mixtures_are_as_different_as_they_should_be() -> None:
    mixtures = [Mixture(Options(seed)) for seed in range(60)]
    sizes = [mixture.num_nodes for mixture in mixtures]
    assert min(sizes) < 6
    assert max(sizes) > 25
    assert {count for mixture in mixtures for count in mixture.replicas} == {1, 2, 3}
    assert {mixture.manifest.recovery.policy for mixture in mixtures} == {
        "none",
        "checkfree",
        "checkfree_plus",
        "checkpoint",
        "redundant",
        "shadow",
        "copy",
        "uniform",
        "random",
    }
    assert {mishap.kind for mixture in mixtures for mishap in mixture.plan} == set(MISHAPS)
    assert len({spec.drift for mixture in mixtures for spec in mixture.specs}) > len(mixtures)


DRAWN_LATER = ("shadow", "copy", "uniform", "random")


def test_policies_drawn_later_come_as_often_as_they_should() -> None:
    policies = Counter(Mixture(Options(seed)).manifest.recovery.policy for seed in range(2000))
    assert 0.08 < policies["shadow"] / 2000 < 0.12
    assert all(0.02 < policies[policy] / 2000 < 0.06 for policy in DRAWN_LATER[1:])
    exact = [m for seed in range(300) if (m := Mixture(Options(seed)).manifest).has_exact_shadows]
    assert len(exact) >= 3


def test_seeds_of_other_policies_are_what_they_would_be_without_those(monkeypatch: pytest.MonkeyPatch) -> None:
    mixtures = [Mixture(Options(seed)) for seed in range(200)]
    same = [seed for seed, m in enumerate(mixtures) if m.manifest.recovery.policy not in DRAWN_LATER]
    lived = [live_mixed(seed) for seed in same[:3]]
    monkeypatch.setattr("node.sim.mixture._drawn_later", lambda _: {})
    before = [Mixture(Options(seed)) for seed in range(200)]
    assert [before[seed].manifest.digest for seed in same] == [mixtures[seed].manifest.digest for seed in same]
    assert 0 < len(before) - len(same) == sum(a.manifest != b.manifest for a, b in zip(before, mixtures, strict=True))
    assert [m.told()[1:] for m in before] == [m.told()[1:] for m in mixtures], "what happens is drawn by another stream"
    assert [m.rng.random() for m in before] == [m.rng.random() for m in mixtures]
    assert [live_mixed(seed) for seed in same[:3]] == lived


def test_only_what_is_asked_for_happens() -> None:
    lived = Mixed(Options(4, 6, ("kill", "partition"))).run()
    assert set(lived.asked) <= {"kill", "partition"}
    quiet = Mixed(Options(4, 6, ())).run()
    assert not quiet.asked
    assert not quiet.fired
    assert quiet.steps > 0.8 * quiet.possible, "a swarm that nothing happens to keeps its speed"


def test_a_seed_that_breaks_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.proposal.is_quorum", lambda *_: True)
    lived = live(3)
    assert "decides" in lived["broken"]
    assert lived["replay"] == "regrow sim --seed 3"


def test_a_swarm_that_stands_still_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are never declared: whoever is killed is waited for."""
    monkeypatch.setattr("protocol.losses.Losses.look", lambda *_: [])
    lives = (Mixed(Options(seed, 8, ("kill",))).run() for seed in range(9))
    with pytest.raises(AssertionError, match=r"stands still|apart"):
        list(lives)


def test_how_kinds_are_written() -> None:
    assert kinds_of("all") == KINDS
    assert kinds_of("none") == ()
    assert kinds_of("partition, kill") == ("kill", "partition")
    assert Options(7, 64, ("kill", "cut")).replay == "regrow sim --seed 7 --nodes 64 --faults kill,cut"


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_soak_ends_in_one_line() -> None:
    told = soak(20, 4, 110)
    assert set(told) == {"seeds", "failures", "commits", "faults_fired", "recoveries", "verdicts", "goodput"}
    total = Tally()
    for seed in range(20, 24):
        total.add(live(seed))
    assert told == json.loads(json.dumps(total.told())), "it does not matter which process lives through which seed"

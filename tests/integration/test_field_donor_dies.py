"""A donor of state dies while a newcomer downloads over slow links: another one takes its place, also where the newcomer is
killed and comes back; nobody trains on a mixed state. With none: tests/conformance/test_catch_up.py."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from node.demo.process import NodeProcess
from tests.integration.ends import end_all_at_once
from tests.integration.seen import assert_counted_once
from tests.integration.test_takeover import assert_one_history
from tests.tools.crowd import Crowd
from tests.tools.material import write_manifest
from tests.tools.relay import Faults
from tests.tools.swarm import Swarm, swarm, wait_for

LIMIT_S = 90.0
SLOW = Faults(back_bytes_per_s=6e6)
BEGUN_BYTES = 2e6
"""What has come from a donor when it is struck: within its first range of 3 MB."""
STATE_BYTES = 12 * 3_147_264
"""Weights and two moments of stage 1: thirteen ranges."""


def launch(made: Swarm, stack: ExitStack, replicas: int) -> Crowd:
    """Stage 1 with a state of several ranges, each replica behind a link; little work, so that steps are short."""
    path = write_manifest(
        made.folder,
        num_block_stages=1,
        model__hidden_size=256,
        model__intermediate_size=1024,
        model__num_hidden_layers=3,
        model__num_attention_heads=4,
        model__num_key_value_heads=4,
        batch__microbatch_samples=1,
        batch__global_samples=8,
        batch__context_tokens=8,
        max_steps=100_000,
        evaluation__every_steps=0,
        recovery__policy="none",
        timing__heartbeat_s=1.0,
        timing__lapse_heartbeats=4,
    )
    crowd = Crowd(made)
    invite = made.running(made.start(path, "--stage", "0")).invite
    for number in range(replicas):
        name = f"donor{number}"
        made.join(invite, "--stage", "1", *crowd.far(stack, name, Faults()), name=name)
    for node in made.nodes:
        made.running(node)
    crowd.whole()
    return crowd


def comes(crowd: Crowd, stack: ExitStack, name: str, donors: list[NodeProcess]) -> tuple[NodeProcess, NodeProcess]:
    """A newcomer in the middle of its download over slow links, and one of these that it is downloading from: of four donors
    the last one may have the small rest only."""
    for donor in donors:
        crowd.links[donor.name].set(SLOW)
    before = {donor.name: crowd.links[donor.name].counts().bytes["back"] for donor in donors}
    newcomer = crowd.come(name, "--stage", "1", *crowd.far(stack, name, Faults()))
    peer = crowd.made.running(newcomer).peer

    def busy() -> NodeProcess | None:
        came = {donor.name: crowd.links[donor.name].counts().bytes["back"] - before[donor.name] for donor in donors}
        return next((donor for donor in donors if came[donor.name] > BEGUN_BYTES), None)

    donor: NodeProcess = wait_for(f"{name} downloads", busy, LIMIT_S, crowd.situation)
    assert not crowd.made.events(newcomer, "transfer"), "it has not got all yet"
    assert all(row["role"] == "learner" for row in crowd.made.status(newcomer)["roster"] if row["peer"] == peer)
    return newcomer, donor


def is_in(crowd: Crowd, newcomer: NodeProcess) -> None:
    """It has all of one state, and computes. Over links that are slow no more: the run would be steps ahead for a minute."""
    for link in crowd.links.values():
        link.set(Faults())
    told = crowd.whole()
    seat = next(seat for seat in told[newcomer.name]["seats"] if seat["stage"] == 1)
    assert (seat["role"], seat["provenance"]["rung"]) == ("active", "copy")
    first = crowd.made.events(newcomer, "transfer")[0]
    assert first["bytes"] >= STATE_BYTES
    crowd.go_on(2)
    last = crowd.made.events(newcomer, "committed")[-1]
    assert crowd.made.running(newcomer).peer in last["contributors"]
    print(f"{newcomer.name}: {first['bytes'] / 1e6:.0f} MB in {first['s']:.1f} s from {len(first['from'])} donors")


def killed(crowd: Crowd, donor: NodeProcess) -> None:
    crowd.kill(donor)


def frozen(crowd: Crowd, donor: NodeProcess) -> None:
    crowd.sleep(donor)


def cut_off(crowd: Crowd, donor: NodeProcess) -> None:
    assert crowd.links[donor.name].break_all() > 0


STRIKES: tuple[Callable[[Crowd, NodeProcess], None], ...] = (killed, frozen, cut_off)


@pytest.mark.full
@pytest.mark.field(2)
@pytest.mark.parametrize("others", [1, 3])
@pytest.mark.timeout(420)
def test_a_donor_dies_during_the_download(tmp_path: Path, others: int, times: int) -> None:
    """One after the other, so that each time as many others are there: one donor is killed, one frozen, one cut off; then a
    newcomer is killed and comes back. With three others all of that in `make field` only, else one is frozen."""
    strikes = STRIKES if others == 1 or times > 1 else (frozen,)
    with ExitStack() as stack, swarm(tmp_path) as made:
        crowd = launch(made, stack, 1 + others)
        donors = made.nodes[1:]
        for strike in strikes:
            newcomer, donor = comes(crowd, stack, f"while_{strike.__name__}", donors)
            donors.remove(donor)
            strike(crowd, donor)
            is_in(crowd, newcomer)
            donors.append(newcomer)
            if strike is frozen:
                donor.send(signal.SIGKILL)
        if strikes == STRIKES:
            newcomer, _ = comes(crowd, stack, "killed_itself", donors)
            crowd.kill(newcomer)
            again = crowd.come(newcomer.name, "--stage", "1", *crowd.far(stack, newcomer.name, Faults()))
            is_in(crowd, again)
            assert crowd.whole()[again.name]["incarnation"] == 2
        assert set(end_all_at_once(crowd.living())) == {0}
        assert_counted_once(crowd.logs(), num_microbatches=8)
        assert_one_history(made)

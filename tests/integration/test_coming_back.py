"""A bootstrap that was killed comes back: by the peers that it remembers, into the run that went on without it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from protocol.addresses import parse_multiaddress
from protocol.invite import parse
from tests.integration.ends import Ending, end_all_at_once
from tests.integration.seen import says
from tests.tools.invitation import invitation, unused_port
from tests.tools.material import write_manifest
from tests.tools.swarm import Swarm, swarm, wait_for

LIMIT_S = 120.0


@pytest.mark.full
@pytest.mark.timeout(480)
def test_the_founder_comes_back(tmp_path: Path) -> None:
    """It does not found the run again; whoever has its old invite gets to the others through it."""
    path = write_manifest(
        tmp_path,
        num_block_stages=1,
        start_replicas=2,
        max_steps=100_000,
        evaluation__every_steps=0,
        timing__heartbeat_s=0.5,
        timing__lapse_heartbeats=4,
    )
    with swarm(tmp_path) as made:
        founder, *others = made.launch(path, num_block_stages=1, replicas=2)
        old = made.running(founder)
        made.wait_step(2, LIMIT_S)
        wait_for("all others are remembered", lambda: len(remembered(founder.state_dir)) == 3, 60, made.situation)
        ending = Ending(founder)
        ending.send(signal.SIGKILL)
        ending.check()
        made.nodes.remove(founder)
        leader = new_leader(made)
        again = made.start(path, "--dht-port", dht_port(old.invite), name=founder.name)
        running = made.running(again)
        assert running.peer == old.peer
        assert running.grpc != old.grpc, "streams come in at another port than before"
        wait_for("it follows", lambda: made.status(again).get("ballot") == leader, LIMIT_S, made.situation)
        assert not [e for e in made.events(again, "decided") if e["ballot"][1] == old.peer and e["ballot"][0] > 1]
        late = made.join(old.invite, name="late")
        wait_for("a newcomer finds the run by it", lambda: made.status(late).get("ballot") == leader, LIMIT_S, made.situation)
        for node in (*others, late):
            node.send(signal.SIGKILL)
            node.process.wait()
        again.send(signal.SIGKILL)
        again.process.wait()
        alone = made.start(path, "--dht-port", dht_port(old.invite), name=founder.name)
        wait_for("it says what it waits for", lambda: says(alone, "has begun and is not founded again"), 90, made.situation)
        made.nodes[:] = [alone]
        assert end_all_at_once([alone])[0] in (0, 128 + signal.SIGTERM)


def remembered(state_dir: Path) -> list[str]:
    for file in state_dir.glob("peers-*.json"):
        found: list[str] = json.loads(file.read_text())
        return found
    return []


def dht_port(invite: str) -> str:
    return str(parse_multiaddress(parse(invite).addresses[0]).port)


def new_leader(made: Swarm) -> list[object]:
    """The ballot that all nodes follow after the takeover."""

    def common() -> list[object] | None:
        ballots = [made.status(node).get("ballot") for node in made.nodes]
        return ballots[0] if ballots[0] and ballots[0][0] > 1 and all(one == ballots[0] for one in ballots) else None

    found: list[object] = wait_for("all follow another", common, LIMIT_S, made.situation)
    return found


@pytest.mark.full
@pytest.mark.timeout(180)
def test_retry(tmp_path: Path) -> None:
    """Nobody is there: it says so and tries again, as the next incarnation, until it is told to end; then somebody is there."""
    path, port = write_manifest(tmp_path), unused_port()
    with swarm(tmp_path) as made:
        invite = invitation(path, tmp_path / "first", "127.0.0.1", port)
        flags = ("--retry", "--bootstrap-timeout-s", "1")
        impatient = made.join(invite, *flags, name="impatient")
        wait_for("it waits", lambda: says(impatient, "starting again in 5 s (Ctrl-C ends it)"), 60, made.situation)
        impatient.send(signal.SIGINT)
        wait_for("it ended", lambda: impatient.exit_code == 128 + signal.SIGINT, 10, made.situation)
        patient = made.join(invite, *flags, name="patient")
        wait_for("it waits longer", lambda: says(patient, "starting again in 10 s"), 90, made.situation)
        made.start(path, "--dht-port", str(port))
        made.running(patient)
        assert made.status(patient)["incarnation"] >= 3
        end_all_at_once(made.nodes[1:])

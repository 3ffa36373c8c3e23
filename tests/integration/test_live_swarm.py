"""A real swarm, seen and driven from outside only: the contract's shapes, the commands, orders, orderly ends.

One swarm of three processes is shared; the tests run in order and the last one ends it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from safetensors import safe_open

from node import http_client
from node.manifest_file import load
from protocol.counted import Claim, verify
from protocol.invite import parse
from tests.tools.command import regrow
from tests.tools.contract import violations
from tests.tools.material import write_manifest
from tests.tools.promtool import promtool
from tests.tools.swarm import Swarm, swarm, wait_for

pytestmark = pytest.mark.timeout(240)
STEPS_LIMIT_S = 120


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, no_module_orphans: str) -> Iterator[Swarm]:
    folder = tmp_path_factory.mktemp("live")
    with swarm(folder) as made:
        made.launch(write_manifest(folder, max_steps=100_000), num_block_stages=2, each=["--log-json"])
        made.wait_step(6, STEPS_LIMIT_S)
        yield made


def wait_phase(live: Swarm, phase: str) -> dict[str, Any]:
    """/status of the first node once it says so."""
    first = live.nodes[0]

    def told() -> dict[str, Any] | None:
        status = live.status(first)
        return status if status.get("phase") == phase else None

    found: dict[str, Any] = wait_for(f"phase {phase}", told, STEPS_LIMIT_S, live.situation)
    return found


def test_ready_lines(live: Swarm) -> None:
    for node in live.nodes:
        line = json.loads((node.state_dir / "stdout.txt").read_text())
        assert violations("ready", line) == []
        assert line["pid"] == node.process.pid
        assert parse(line["invite"]).addresses


def test_status_of_every_node(live: Swarm) -> None:
    for stage, node in enumerate(live.nodes):
        status = live.status(node)
        assert violations("status", status) == []
        assert status["pid"] == node.process.pid
        assert status["step"] >= 6
        assert stage in [seat["stage"] for seat in status["seats"] if seat["role"] == "active"]


def test_health_and_readiness(live: Swarm) -> None:
    address = live.running(live.nodes[1]).http
    assert http_client.get(address, "/healthz") == b"ok\n"
    wait_for("ready", lambda: b"holds stage" in http_client.get(address, "/readyz"), 30)


def test_metrics(live: Swarm) -> None:
    def scrape() -> dict[tuple[str, ...], float]:
        text = http_client.get(live.running(live.nodes[1]).http, "/metrics").decode()
        return {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    wait_for("a second is over", lambda: ("regrow_link_peak_bytes_per_second", "sent") in scrape(), 60, live.situation)
    samples = scrape()
    assert samples["regrow_step",] >= 6
    assert samples["regrow_loss",] > 0
    assert samples["regrow_tokens_total",] >= 6 * 8 * 32
    assert samples["regrow_microbatches_total", "1", "committed"] >= 6 * 4
    assert samples["regrow_step_phase_seconds_count", "reduce"] >= 6
    assert samples["regrow_wire_bytes_total", "forward", "sent"] > 0
    assert samples["regrow_wire_bytes_total", "backward", "received"] > 0
    assert samples["regrow_seats", "active"] == 1
    assert samples["process_resident_memory_bytes",] > 1 << 20
    assert samples["regrow_state_dir_free_bytes",] > 0
    assert abs(samples["regrow_clock_offset_seconds",]) < 3
    assert samples["regrow_sending_seconds_total",] > 0
    assert samples["regrow_link_peak_bytes_per_second", "sent"] > 0
    assert samples["regrow_contributed_tokens_total",] >= 6 * 4 * 32
    assert 0 < samples["regrow_work_share_ratio",] < 1


def test_metrics_are_clean(live: Swarm) -> None:
    for node in live.nodes:
        code, said = promtool("check", "metrics", stdin=http_client.get(live.running(node).http, "/metrics").decode())
        assert (code, said) == (0, "")


def test_logs(live: Swarm) -> None:
    """The first one's are for people, the others' for machines. No line comes twice in a row."""
    for node in live.nodes:
        lines = (node.state_dir / "stderr.txt").read_text().splitlines()
        assert lines
        if node is not live.nodes[0]:
            told = [json.loads(line) for line in lines]
            assert not [line for line in told if violations("log", line)]
            assert {"node", "up", "granted", "state", "joined", "contributing"} <= {line["event"] for line in told}
            lines = [json.dumps(line | {"t": 0}) for line in told]
        assert not [line for line, following in pairwise(lines) if line == following]


def test_what_is_counted_is_shown_and_others_know_the_root(live: Swarm) -> None:
    """Each stage has one replica: what it shows of a step is the whole of it."""
    batch = load(live.folder / "run.yaml").batch
    notes = {node.name: live.events(node, "counted") for node in live.nodes}
    roots = {node.name: {e["step"]: e["root"] for e in live.events(node, "decided") if "root" in e} for node in live.nodes}
    for stage, node in enumerate(live.nodes):
        others = live.nodes[stage - 1]
        steps = [note["step"] for note in notes[node.name]]
        assert steps == sorted(set(steps))
        assert len(steps) >= 5
        for note in notes[node.name]:
            known = {key: note[key] for key in note if key not in ("t", "wall", "type", "root", "ballot")}
            claim = Claim(**known | {"path": tuple(note["path"])})
            assert (claim.stage, claim.tokens) == (stage, batch.tokens_per_step)
            assert note["step"] not in roots[others.name] or verify(claim, roots[others.name][note["step"]])
        assert set(steps[:4]) <= set(roots[others.name])
        proven = live.status(node)["contribution"]["proven"]
        assert proven["steps"] >= len(steps)
        assert proven["stages"] == [{"stage": stage, "tokens": proven["steps"] * batch.tokens_per_step}]


def test_events(live: Swarm) -> None:
    for node in live.nodes:
        events = live.events(node)
        wrong = {line for event in events for line in violations("event", event)}
        assert not wrong, sorted(wrong)[:10]
        assert {"accumulated", "reduced", "committed", "loss", "decided"} <= {event["type"] for event in events}


def test_equal_state_id_means_equal_digest(live: Swarm) -> None:
    digests: dict[str, set[str]] = {}
    for node in live.nodes:
        for event in live.events(node, "committed"):
            digests.setdefault(event["state_id"], set()).add(event["digest"])
    assert len(digests) >= 3 * 6
    assert all(len(found) == 1 for found in digests.values())


def test_every_microbatch_counts_once_per_stage(live: Swarm) -> None:
    for node in live.nodes:
        for event in live.events(node, "committed"):
            bitmaps = [int(bits, 16) for bits in event["contributors"].values()]
            assert sum(bitmaps) == 0b1111


def test_paused_by_the_organiser_only(live: Swarm, tmp_path: Path) -> None:
    first, second = live.nodes[:2]
    stranger = regrow("pause", "--state-dir", second.state_dir)
    assert (stranger.code, "key" in stranger.line) == (2, True)
    paused = regrow("pause", "--state-dir", first.state_dir)
    assert paused.code == 0, paused.err
    step = wait_phase(live, "paused")["step"]
    assert live.status(first)["step"] == step


def test_dump_has_the_state_that_status_tells(live: Swarm, tmp_path: Path) -> None:
    wait_phase(live, "paused")
    out = tmp_path / "stage1.safetensors"
    node = live.nodes[1]
    ended = regrow("debug", "dump", "--state-dir", node.state_dir, "--stage", 1, "--out", out)
    assert ended.code == 0, ended.err
    seats = {seat["stage"]: seat for seat in live.status(node)["seats"]}
    with safe_open(out, framework="numpy") as file:
        assert file.metadata()["state_id"] == seats[1]["state_id"]
        names = set(file.keys())
        assert file.get_tensor("model.layers.0.mlp.up_proj.weight").shape == (32, 16)
    assert "model.layers.1.self_attn.q_proj.weight" in names
    assert not any(name.startswith("model.layers.2.") for name in names)
    elsewhere = regrow("debug", "dump", "--state-dir", node.state_dir, "--stage", 2, "--out", out)
    assert elsewhere.code == 3
    assert "stage 2" in elsewhere.line


def test_status_command_finds_all_from_an_invite(live: Swarm) -> None:
    invite = regrow("invite", "--state-dir", live.nodes[2].state_dir)
    assert invite.code == 0, invite.err
    found = regrow("status", invite.out.strip(), "--json", limit_s=120)
    assert found.code == 0, found.err
    told = [node["status"]["pid"] for node in json.loads(found.out)["nodes"]]
    assert sorted(told) == sorted(node.process.pid for node in live.nodes)


def test_status_command_as_a_table(live: Swarm) -> None:
    shown = regrow("status", live.running(live.nodes[0]).http)
    assert shown.code == 0, shown.err
    assert "paused, step" in shown.out
    assert "0 active" in shown.out


def test_resumed(live: Swarm) -> None:
    before = live.status(live.nodes[0])["step"]
    assert regrow("resume", "--state-dir", live.nodes[0].state_dir).code == 0
    live.wait_step(before + 2, STEPS_LIMIT_S)


def test_stopped_in_order(live: Swarm) -> None:
    ended = regrow("stop", "--state-dir", live.nodes[0].state_dir)
    assert ended.code == 0, ended.err
    assert live.wait_ended(60) == [0, 0, 0]
    losses = [event["value"] for event in live.events(live.nodes[0], "loss")]
    assert losses[-1] < losses[0]
    gone = regrow("status", "--state-dir", live.nodes[0].state_dir)
    assert gone.code == 3
    assert gone.line.startswith("regrow: ")

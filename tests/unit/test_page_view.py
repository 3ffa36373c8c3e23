"""What the page shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from node.page.view import Copying, headline, make_view, pipeline
from tests.tools.page_views import FEW, HOSTILE, NOW, known_of, large_view, names_of, peer_of, small_view, status_of


def stages_of(status: dict[str, Any], **changes: Any) -> dict[int, dict[str, Any]]:
    return {stage["stage"]: stage for stage in pipeline(status, known_of(status, **changes))}


def states_of(status: dict[str, Any], **changes: Any) -> dict[int, str]:
    return {number: stage["state"] for number, stage in stages_of(status, **changes).items()}


def lapse(status: dict[str, Any], *numbers: int) -> dict[str, Any]:
    silent = {peer_of(n) for n in numbers}
    return status | {"view": [row | ({"phase": "lapsed"} if row["peer"] in silent else {}) for row in status["view"]]}


def test_a_row_of_stages_with_replicas_and_states() -> None:
    stages = stages_of(status_of(*FEW))
    assert [stages[0]["kind"], stages[1]["kind"]] == ["embedding", "block"]
    assert {n: stage["state"] for n, stage in stages.items()} == {0: "ok", **dict.fromkeys(range(1, 6), "single")}
    first, copy, _ = stages[0]["replicas"]
    assert first == {"id": peer_of(0)[-12:], "name": "anna", "role": "active", "state": "live", "me": True, "leads": True}
    assert (copy["role"], copy["me"], copy["leads"]) == ("passive", False, False)


def test_silent_holders_are_suspected() -> None:
    assert states_of(lapse(status_of((2, 2, 1)), 2, 4)) == {0: "ok", 1: "strained", 2: "suspected"}
    replicas = stages_of(lapse(status_of((2, 2, 1)), 2, 4))[1]["replicas"]
    assert [replica["state"] for replica in replicas] == ["suspected", "live"]


def test_whom_nothing_reaches_is_suspected_before_its_lapse() -> None:
    assert states_of(status_of((1, 1, 1)), suspected=frozenset({peer_of(1)})) == {0: "single", 1: "suspected", 2: "single"}


def test_whom_this_node_does_not_watch_is_on_the_roster_all_the_same() -> None:
    status = status_of((1, 2))
    status["view"] = [row | {"phase": "unwatched"} for row in status["view"]]
    assert states_of(status) == {0: "single", 1: "ok"}


def test_a_stage_that_nobody_holds_is_lost_and_before_the_first_step_open() -> None:
    status = status_of((1, 1, 1))
    status["roster"] = [row for row in status["roster"] if row["stage"] != 1]
    gone = [(1, peer_of(1))]
    lost = stages_of(status, gone=gone)[1]
    assert (lost["state"], [r["state"] for r in lost["replicas"]]) == ("lost", ["lost"])
    assert states_of(status | {"step": 0}) == {0: "single", 1: "open", 2: "single"}


def test_a_learner_alone_holds_nothing() -> None:
    status = status_of((1, 0, 1), ((1, "learner"),))
    assert states_of(status)[1] == "lost"


def test_a_stage_that_is_made_of_others_is_rebuilding_until_the_next_commit() -> None:
    status = status_of((1, 1, 1))
    status["regained"] = [{"stage": 1, "rung": "recovery", "peer": peer_of(1)}]
    assert stages_of(status)[1]["note"] == "being rebuilt from its neighbours"
    assert states_of(status) == {0: "single", 1: "rebuilding", 2: "single"}
    status["regained"] = [{"stage": 1, "rung": "promotion", "peer": peer_of(1)}]
    assert states_of(status)[1] == "single", "an exact copy that takes over is there at once"


def test_who_is_back_on_the_roster_is_not_shown_as_lost() -> None:
    status = status_of((1, 2))
    assert [r["state"] for r in stages_of(status, gone=[(1, peer_of(1))])[1]["replicas"]] == ["live", "live"]


def told(status: dict[str, Any], **changes: Any) -> tuple[str, str]:
    known = known_of(status, **changes)
    said = headline(status, pipeline(status, known), known)
    return said["level"], said["title"]


def test_is_my_node_working_and_is_it_counted() -> None:
    working = status_of(*FEW)
    assert told(working) == ("good", "This node is working, and its work counts.")
    assert told(working, counted=None) == ("idle", "This node is working; nothing is counted yet.")
    assert told(working, counted=(1100, NOW - 200)) == ("warn", "This node is working, but is not counted at present.")
    assert told(working, committed_at=NOW - 300) == ("warn", "This node is up, but the run stands still.")
    assert told(working | {"seats": []}) == ("idle", "This node is ready, and has no stage yet.")
    for role, level in (("learner", "idle"), ("passive", "good")):
        assert told(working | {"seats": [working["seats"][0] | {"role": role}]})[0] == level
    for phase in ("starting", "waiting", "paused", "finished", "leaving"):
        assert told(working | {"phase": phase, "sentence": "so"})[1] != "This node is working, and its work counts."
    missing = working | {"roster": [row for row in working["roster"] if row["stage"] != 3]}
    assert told(missing) == ("warn", "This node is up; the run gets a stage back.")


def test_slow_steps_are_not_late() -> None:
    assert told(status_of(*FEW), committed_at=NOW - 300, step_s=60.0)[0] == "good"


def test_warnings_say_what_to_do() -> None:
    status = lapse(status_of((1, 1, 1)), 2)
    status["roster"] = [row for row in status["roster"] if row["stage"] != 1]
    view = make_view(status, {}, [], known_of(status, committed_at=NOW - 100))
    assert [warning["level"] for warning in view["warnings"]] == ["bad", "warn", "warn"]
    assert view["warnings"][0]["text"] == "Stage 1 is lost: nobody holds it."
    assert all(warning["do"] for warning in view["warnings"])
    assert small_view()["warnings"] == []


def test_the_node_says_what_it_holds_and_how_it_came_to_it() -> None:
    node = small_view()["node"]
    [seat] = node["seats"]
    assert seat["how"].startswith("rebuilt from stages 2 and 4, .44 / .56 as of step 1180; 4.1 MB from bert (")
    assert (node["counted_step"], node["contribution"]["share"], node["received"]) == (1204, 0.17, "11 Mbit/s")


def test_a_copy_on_its_way_has_a_bar() -> None:
    status = status_of((1, 1))
    status["seats"][0]["role"] = "learner"
    view = make_view(status, {}, [], known_of(status, copying={0: Copying(1_000_000, 4_000_000, 3.0)}))
    assert (view["node"]["seats"][0]["copied"], view["node"]["seats"][0]["left"]) == (0.25, "3.0 s")
    assert "1.0 MB of 4.0 MB" in view["headline"]["text"]


def test_a_run_without_a_node_of_its_own() -> None:
    status = status_of(*FEW) | {"peer": ""}
    view = make_view(status, {}, [], known_of(status))
    assert (view["mode"], "node" in view) == ("monitor", False)
    assert view["headline"]["title"] == "The run is training."


@pytest.mark.parametrize("phase", ["starting", "waiting"])
def test_a_node_that_knows_nothing_yet(phase: str) -> None:
    status = {"pid": 1, "phase": phase, "sentence": "starting", "seats": [], "view": []}
    view = make_view(status, {}, [], known_of(status | {"roster": [], "step": 0}))
    assert view["pipeline"] == []
    assert json.loads(json.dumps(view)) == view


def test_nothing_secret_is_in_it() -> None:
    status = status_of(*FEW, sentence="waiting for 10.1.2.3:28480, see /home/anna/x, regrow1:abc")
    names = names_of(9) | {peer_of(1): "203.0.113.7:80"}
    text = json.dumps(make_view(status, {}, small_view()["events"], known_of(status, names=names)))
    for secret in ("10.1.2.3", "203.0.113.7", "/home", "/var", "regrow1:"):
        assert secret not in text


def test_two_hundred_nodes_are_few_kilobytes() -> None:
    view = large_view()
    assert sum(len(stage["replicas"]) for stage in view["pipeline"]) > 180
    assert len(json.dumps(view)) < 60_000
    assert all(len(replica["name"]) <= 40 for stage in view["pipeline"] for replica in stage["replicas"])
    shown = {replica["name"] for stage in view["pipeline"] for replica in stage["replicas"]}
    assert HOSTILE[0] in shown, "names are shown as they are, and escaped where they are drawn"

"""The page of a run as a monitor sees it: strangers' words, put together."""

from __future__ import annotations

from typing import Any

from node.monitor.picture import NodeView, Picture
from node.page.feed import difference
from node.page.outside import MOST_OF_ONE, Outside
from tests.tools.clock import StepClock

MEMBERS = ("QmAnna", "QmBert", "QmCleo")


def node(peer: str, state: str = "live") -> NodeView:
    return NodeView(peer, peer[-12:], peer.removeprefix("Qm").lower(), state, "seated", (), 1, 0.5)  # type: ignore[arg-type]


def picture(step: int = 5, **changes: Any) -> Picture:
    facts: dict[str, Any] = {
        "run_id": "a-run",
        "step": step,
        "last_step": 100,
        "phase": "training",
        "loss": 9.0 - step / 10,
        "tokens": 1000 * step,
        "tokens_per_second": 500.0,
        "commit_age_s": 1.0,
        "num_stages": 3,
        "nodes": tuple(node(peer) for peer in MEMBERS),
        "roster": tuple((stage, peer, "active") for stage, peer in enumerate(MEMBERS)),
    }
    return Picture(**(facts | changes))


class Seen:
    """What the page is given, set by the test."""

    def __init__(self) -> None:
        self.clock = StepClock()
        self.now = picture()
        self.told: list[dict[str, Any]] = []
        self.page = Outside(self.clock, lambda: self.now, lambda: self.told)

    def tell(self, peer: str, kind: str, text: str, serial: int = 1, **more: Any) -> None:
        entry = {"peer": peer, "kind": kind, "text": text, "serial": serial, "wall": self.clock.now, "step": 5}
        self.told.append(entry | more)

    def texts(self) -> list[str]:
        return [event["text"] for event in self.page.view()["events"]]


def test_a_run_is_shown_and_no_node() -> None:
    seen = Seen()
    for step in (5, 6, 6, 7):
        seen.clock.now += 2.0
        seen.now = picture(step, validation=(6, 8.5))
        seen.page.tick()
    view = seen.page.view()
    assert (view["mode"], view["headline"]["title"], "node" in view) == ("monitor", "The run is training.", False)
    assert [stage["replicas"][0]["name"] for stage in view["pipeline"]] == ["anna", "bert", "cleo"]
    assert view["curves"]["loss"] == [[5, 8.5], [6, 8.4], [7, 8.3]]
    assert view["curves"]["validation"] == [[6, 8.5]]
    assert view["run"]["seconds_left"] == 186


def test_nobody_has_answered_yet() -> None:
    seen = Seen()
    seen.now = Picture("a-run")
    seen.page.tick()
    view = seen.page.view()
    assert (view["pipeline"], view["headline"]["text"]) == ([], "No node of the run has answered yet.")


def test_what_several_tell_is_told_once() -> None:
    seen = Seen()
    for peer in MEMBERS:
        seen.tell(peer, "joined", "dora computes stage 1.")
    seen.clock.now += 100.0
    seen.tell("QmBert", "joined", "dora computes stage 1.", serial=2)
    assert seen.texts() == ["dora computes stage 1."] * 2, "the same again later is another thing"


def test_who_says_this_node_is_named() -> None:
    seen = Seen()
    seen.tell("QmBert", "took_over", "This node coordinates the run now, after dora.")
    seen.tell("QmBert", "provenance", "This node's stage 1 is ready.", serial=2)
    assert seen.texts() == ["bert (QmBert) coordinates the run now, after dora."], "what concerns one alone is left out"


def test_strangers_and_floods_do_not_fill_the_page() -> None:
    seen = Seen()
    seen.tell("QmEve", "lost", "All is lost.")
    for serial in range(400):
        seen.tell("QmBert", "voided", f"Step {serial} is run again, see 10.0.0.1:80.", serial=serial)
    seen.tell("QmAnna", "lost", "Stage 1 lost its last holder.")
    assert len(seen.texts()) == MOST_OF_ONE + 1
    assert seen.texts()[-1] == "Stage 1 lost its last holder."
    assert not [text for text in seen.texts() if "10.0.0.1" in text]


def test_levels_are_ours() -> None:
    seen = Seen()
    seen.tell("QmBert", "joined", "x", level="bad' onclick='", count=10**9, replaces=1)
    [event] = seen.page.view()["events"]
    assert (event["level"], "count" in event, "replaces" in event) == ("info", False, False)


def test_entries_keep_their_serials_when_old_ones_go() -> None:
    seen = Seen()
    for serial, text in enumerate("abc"):
        seen.tell("QmBert", "voided", text, serial=serial)
    before = seen.page.view()
    del seen.told[0]
    seen.tell("QmBert", "voided", "d", serial=3)
    change = difference(before, seen.page.view())
    assert change is not None
    assert [event["text"] for event in change["events"]] == ["d"]


def test_a_stage_that_is_told_to_be_rebuilt_is_so_until_the_next_commit() -> None:
    seen = Seen()
    seen.tell("QmAnna", "rebuild", "Stage 1 is rebuilt from stage 2; handed to bert.", stage=1)
    assert [stage["state"] for stage in seen.page.view()["pipeline"]] == ["single", "rebuilding", "single"]
    seen.now = picture(6)
    assert [stage["state"] for stage in seen.page.view()["pipeline"]] == ["single"] * 3
    assert seen.page.view()["curves"]["marks"] == [[5, "rebuild", 1]]


def test_suspicion_is_what_members_say() -> None:
    seen = Seen()
    seen.now = picture(nodes=(node("QmAnna"), node("QmBert", "suspected"), node("QmCleo", "unreachable")))
    assert [stage["state"] for stage in seen.page.view()["pipeline"]] == ["single", "suspected", "single"]

"""The page of one node, fed as its runtime feeds it."""

from __future__ import annotations

from typing import Any

from node.page.page import GONE_S, Page
from node.ports import Lease
from protocol.commands import Command, Note
from protocol.events import CommandFailed, Learned, LearningGoesOn
from protocol.status import snapshot
from tests.tools.clock import StepClock
from tests.tools.lead import Lead


class Watched:
    """A founder with two members that the test plays, and its page."""

    def __init__(self) -> None:
        self.lead = Lead()
        self.clock = StepClock(self.lead.now)
        self.page = Page(self.clock, lambda: snapshot(self.lead.state, self.clock.now))
        self.page.open(self.lead.state)

    def see(self, commands: list[Command]) -> None:
        self.clock.now = self.lead.now
        for command in commands:
            self.page.observe_command(command)
        self.page.tick()

    def note(self, type_: str, **fields: Any) -> None:
        self.page.observe_command(Note(type_, fields))

    def kinds(self) -> list[str]:
        return [entry["kind"] for entry in self.page.entries()]

    def states(self) -> list[str]:
        return [stage["state"] for stage in self.page.view()["pipeline"]]


def lease(peer: str, name: str) -> Lease:
    return Lease(peer, 1, name, f"{peer}:1", "", (1,), 1, False, False, expires=1e12)


def test_before_there_is_anything_to_show() -> None:
    page = Page(StepClock(), lambda: {"phase": "starting", "sentence": "starting", "seats": [], "view": []})
    page.tick()
    assert page.view()["headline"]["text"] == "Starting."
    assert page.entries() == []


def test_silence_is_shown_and_its_end() -> None:
    made = Watched()
    made.see(made.lead.pass_time(3.0))
    assert made.states() == ["single", "single", "single"]
    made.see(made.lead.pass_time(4.0, silent=("a",)))
    assert made.kinds()[0] == "suspected"
    assert made.states()[1] in ("suspected", "lost")


def test_whom_nothing_reaches_is_suspected_at_once_until_it_is_heard() -> None:
    made = Watched()
    made.see(made.lead.pass_time(1.0))
    failed = CommandFailed(1, 1, 1, 0, "a", "connection refused", unsent=True)
    made.clock.now += 0.1
    made.page.observe_event(CommandFailed(1, 1, 1, 0, "b", "a bad tensor"))
    made.page.observe_event(failed)
    made.page.tick()
    assert (made.states(), made.kinds()) == (["single", "suspected", "single"], ["suspected"])
    made.page.observe_event(failed)
    made.page.tick()
    assert made.kinds() == ["suspected"], "told once"
    made.see(made.lead.pass_time(0.5))
    assert (made.states()[1], made.kinds()) == ("single", ["suspected", "heard"])


def test_this_node_never_suspects_itself() -> None:
    made = Watched()
    made.page.observe_event(CommandFailed(0, 1, 1, 0, "lead", "x", unsent=True))
    made.lead.now += 60.0
    made.see([])
    assert all(entry.get("peer") != "lead" for entry in made.page.entries())


def test_the_lost_are_shown_for_a_while() -> None:
    made = Watched()
    for _ in range(2):
        made.note("lost", stage=1, peer="gone", reason="x", step=1, silent_s=3.0)
    replicas = made.page.view()["pipeline"][1]["replicas"]
    assert [(r["id"], r["state"]) for r in replicas] == [("a", "live"), ("gone", "lost")]
    made.clock.now += GONE_S + 1
    assert [r["id"] for r in made.page.view()["pipeline"][1]["replicas"]] == ["a"]


def test_what_counts_of_this_node() -> None:
    made = Watched()
    made.note("committed", stage=0, step=7, state_id="s", digest="d", contributors={"lead": "0", "a": "f"})
    assert made.page.view()["node"]["counted_step"] is None
    made.note("committed", stage=0, step=8, state_id="s", digest="d", contributors={"lead": "3", "a": "c"})
    assert made.page.view()["node"]["counted_step"] == 8


def test_names_come_from_leases_and_stay() -> None:
    made = Watched()
    made.page.observe_leases([lease("a", "anna"), lease("b", "<b>bert</b>")])
    made.page.observe_leases([])
    names = [stage["replicas"][0]["name"] for stage in made.page.view()["pipeline"]]
    assert names == ["lead", "anna", "<b>bert</b>"]
    made.note("moved", peer="a", stage=1, to=2, step=1)
    assert made.page.entries()[-1]["text"] == "anna (a) moves from stage 1 to stage 2."


def test_a_copy_on_its_way() -> None:
    made = Watched()
    made.page.observe_event(LearningGoesOn(0, 1_000_000, 4_000_000, 3.0))
    assert made.page.view()["node"]["seats"][0]["copied"] == 0.25
    made.page.observe_event(Learned(0, "s", 1, "d", 1, 1.0, 0, ("a",), 4_000_000, 2.0))
    assert "copied" not in made.page.view()["node"]["seats"][0]


def test_speeds_of_the_link_over_the_last_minute() -> None:
    made = Watched()
    made.page.tick()
    assert made.page.view()["node"]["received"] is None
    for _ in range(30):
        made.page.on_bytes("in", 5_000_000)
        made.page.on_bytes("out", 2_500_000)
        made.clock.now += 5.0
        made.page.tick()
    told = made.page.view()["node"]
    assert (told["received"], told["sent"]) == ("8.0 Mbit/s", "4.0 Mbit/s")


def test_listeners_are_told_twice_a_second_at_most() -> None:
    made = Watched()
    made.page.feed.listen()
    for _ in range(9):
        made.clock.now += 0.1
        made.note("loss", step=int(made.clock.now * 10), value=5.0, tokens=8)
        made.page.tick()
    assert made.page.feed.number == 1

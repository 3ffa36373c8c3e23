"""How soon the silence of a stage's last holder becomes a decided loss and a grant: a tick after the lapse, not a heartbeat."""

from __future__ import annotations

import pytest

from protocol.commands import Command, Connect
from protocol.events import Tick
from protocol.ids import Member
from protocol.messages import Probe, RecordsWanted, Suspect
from protocol.records import Rebuild, Roster, Seating, Source
from protocol.view import View
from protocol.watch import Watch
from tests.tools.core import LEAD, Core, a_manifest, holders, notes, of, sent

MANIFEST = a_manifest()
LAPSE_S, HEARTBEAT_S = MANIFEST.timing.lapse_s, MANIFEST.timing.heartbeat_s
TICK_S = HEARTBEAT_S / 4
SILENT = "p2.0"


def ticks(core: Core, seconds: float, *speaking: str) -> list[tuple[float, list[Command]]]:
    """(seconds gone, commands) of each tick in which `speaking` were heard."""
    began, found = core.now, []
    while core.now < began + seconds:
        commands = core.do(Tick(dict.fromkeys(speaking, 0.0)), TICK_S)
        found.append((core.now - began, commands))
    return found


def test_a_watcher_names_who_falls_silent_once_and_then_with_its_heartbeats() -> None:
    view = View(3.0)
    watch = Watch(view, 100.0)
    watch.name(["x", "y"], 0.0)
    assert watch.lapsed(3.0, again=False) == []
    assert watch.lapsed(3.1, again=False) == ["x", "y"]
    assert watch.lapsed(3.2, again=False) == []
    assert watch.lapsed(3.3, again=True) == ["x", "y"]
    view.heard("x", 3.4)
    assert watch.lapsed(3.5, again=True) == ["y"]
    assert watch.lapsed(6.5, again=False) == ["x"], "it fell silent anew"


@pytest.mark.parametrize("phase", range(4))
def test_a_neighbour_suspects_at_the_first_tick_after_the_lapse(phase: int) -> None:
    core = Core(MANIFEST, "p1.0", holders(MANIFEST))
    core.open()
    core.state._watch.name([SILENT], core.now)
    ticks(core, phase * TICK_S, LEAD.peer, SILENT)
    times = [at for at, commands in ticks(core, LAPSE_S + 2 * HEARTBEAT_S, LEAD.peer) if sent(commands, Suspect)]
    assert times[0] == pytest.approx(LAPSE_S + TICK_S)
    assert len(times) <= 3, "and then once a heartbeat"


def test_the_coordinator_declares_the_loss_with_the_second_opinion_not_with_its_next_heartbeat() -> None:
    core = Core(MANIFEST, LEAD.peer, founder=True)
    seats = holders(MANIFEST)
    core.decide(Roster(core.state.chain.head, 0, tuple(seats), (), (LEAD,)))
    others = [s.member.peer for s in seats if s.member not in (LEAD, seats[2].member)]
    ticks(core, HEARTBEAT_S, *others, SILENT)
    asked = [at for at, commands in ticks(core, LAPSE_S + 2 * TICK_S, *others) if sent(commands, Probe)]
    assert asked[:1] == pytest.approx([LAPSE_S + TICK_S])
    commands = core.tell(Suspect(seats[2].member, "not heard"), others[0])
    assert [note["peer"] for note in notes(commands, "lost")] == [SILENT]


def test_a_spare_that_is_granted_a_stage_asks_at_once_for_the_records_that_it_lacks() -> None:
    manifest = a_manifest(policy="checkfree")
    spare, member = (Core(manifest, name, holders(manifest)) for name in ("spare", "p1.0"))
    before = spare.state.chain.head
    lost = next(s for s in spare.state.chain.seatings if s.member.peer == SILENT)
    dropped = Roster(before, 0, (), (lost,), (LEAD,))
    member.decide(dropped)
    chain = member.state.chain
    joins = (Seating(2, spare.state.config.member, "active", 1),)
    rebuild = Rebuild(chain.head, 0, 2, 1, (Source(1, chain.state_ids[1], 1.0),), joins, (LEAD,))
    assert sent(spare.decide(rebuild), RecordsWanted) == [RecordsWanted(before)]
    for record in (dropped, dropped, rebuild):
        assert not sent(spare.decide(record), RecordsWanted), "nothing is lacking, also where a record comes twice"
    assert list(spare.state.bench.seats) == [2]


def connected(commands: list[Command]) -> list[str]:
    return [command.peer for command in of(commands, Connect)]


def test_streams_of_a_rebuilt_stages_holder_are_opened_while_its_state_comes() -> None:
    manifest = a_manifest(num_block_stages=4, policy="checkfree_plus")
    chain = Core(manifest, "any", holders(manifest)).state.chain
    lost = next(s for s in chain.seatings if s.stage == 3)
    new = Seating(3, Member("new", 1), "active", 1)
    dropped = Roster(chain.head, 0, (), (lost,), (LEAD,))
    made = tuple(Source(stage, chain.state_ids[stage], 0.5) for stage in (2, 4))
    expected = {
        LEAD.peer: ["new"],  # stage 3 is the last one in the swapped order, S2 S1 S4 S3
        "p1.0": [],
        "p2.0": ["new"],
        "p4.0": ["new"],
        "new": sorted([LEAD.peer, "p2.0", "p4.0"]),
    }
    for peer, peers in expected.items():
        core = Core(manifest, peer, holders(manifest))
        assert not connected(core.decide(dropped)), "a stage is empty: nobody meets anybody"
        rebuild = Rebuild(core.state.chain.head, 0, 3, 1, made, (new,), (LEAD,))
        assert sorted(connected(core.decide(rebuild))) == peers

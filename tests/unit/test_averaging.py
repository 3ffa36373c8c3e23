"""Who averages which share of a lost stage, when it begins and when it ends, as each node decides for itself."""

from __future__ import annotations

from typing import Any

from protocol.averaging import averagers, sources_of
from protocol.commands import Command, MixAhead, StopMixing
from protocol.events import Applied
from protocol.ids import Member
from protocol.manifest import Manifest
from protocol.recipes import recipe, weights_of
from protocol.records import Rebuild, Roster, Seating
from protocol.seat import SeatPhase
from tests.tools.core import LEAD, Core, a_manifest, holders
from tests.unit.test_protocol_members import commit

NEW = Member("new", 1)


def a_run(num_block_stages: int = 4, **recovery: Any) -> Manifest:
    return a_manifest(num_block_stages, recovery={"policy": "checkfree", "embedding_copies": 0} | recovery)


class Neighbour:
    """One node of a run after a step."""

    def __init__(self, peer: str, manifest: Manifest | None = None, replicas: int = 1, more: tuple[Seating, ...] = ()) -> None:
        self.manifest = manifest or a_run()
        self.core = Core(self.manifest, peer, [*holders(self.manifest, replicas), *more])
        self.chain = self.core.state.chain
        commit(self.chain, self.manifest)
        for stage, seat in self.core.state.bench.seats.items():
            seat.state.state_id = self.chain.state_ids[stage]

    def lose(self, *stages: int, joins: tuple[Seating, ...] = ()) -> list[Command]:
        leaves = tuple(s for s in self.chain.seatings if s.stage in stages)
        return told(self.core.decide(Roster(self.chain.head, 1, joins, leaves, (LEAD,))))

    def rebuild(self, stage: int) -> list[Command]:
        sources = sources_of(stage, self.chain, self.manifest)
        joins = (Seating(stage, NEW, "active", 1),)
        return told(self.core.decide(Rebuild(self.chain.head, 1, stage, 1, sources, joins, (LEAD,))))


def told(commands: list[Command]) -> list[Command]:
    return [c for c in commands if isinstance(c, MixAhead | StopMixing)]


def shares(commands: list[Command]) -> list[tuple[int, list[int], int, int]]:
    """(stage, stages of its sources, share, number of shares)"""
    ahead = [c for c in commands if isinstance(c, MixAhead)]
    return [(c.stage, [s.stage for s in c.sources], c.part, c.parts) for c in ahead]


def test_each_neighbour_takes_its_half_as_soon_as_the_stage_has_no_holder() -> None:
    assert shares(Neighbour("p1.0").lose(2)) == [(2, [1, 3], 0, 2)]
    assert shares(Neighbour("p3.0").lose(2)) == [(2, [1, 3], 1, 2)]
    for peer in ("lead", "p4.0", "elsewhere"):
        assert not Neighbour(peer).lose(2)


def test_what_is_a_copy_needs_nothing_ahead_and_without_a_policy_nothing_is_made() -> None:
    assert not Neighbour("p2.0").lose(1)
    assert not Neighbour("p3.0").lose(4)
    assert not Neighbour("p1.0", a_run(policy="none")).lose(2)
    assert not Neighbour("p1.0").lose(0)


def test_adjacent_stages_are_both_made_of_the_nearest_survivors() -> None:
    assert shares(Neighbour("p1.0").lose(2, 3)) == [(2, [1, 4], 0, 2), (3, [1, 4], 0, 2)]
    assert shares(Neighbour("p4.0").lose(2, 3)) == [(2, [1, 4], 1, 2), (3, [1, 4], 1, 2)]


def test_replicas_of_the_sources_take_turns_up_to_three() -> None:
    team = [Neighbour(peer, replicas=2) for peer in ("p1.0", "p3.0", "p1.1", "p3.1")]
    assert [shares(node.lose(2)) for node in team] == [[(2, [1, 3], part, 3)] for part in range(3)] + [[]]
    chain = team[0].chain
    assert averagers(chain, sources_of(2, chain, team[0].manifest)) == ("p1.0", "p3.0", "p1.1")


def test_who_holds_both_sources_has_nothing_to_fetch_and_its_share_all_the_same() -> None:
    second = (Seating(3, Member("p1.0", 1), "active"),)
    assert not Neighbour("p1.0", more=second).lose(2)
    assert shares(Neighbour("p3.0", more=second).lose(2)) == [(2, [1, 3], 1, 2)]


def test_the_rebuild_changes_nothing_where_it_names_the_same_sources() -> None:
    node = Neighbour("p1.0")
    assert node.lose(2)
    assert not node.rebuild(2)
    commit(node.chain, node.manifest)
    bench = node.core.state.bench
    bench.go_on(0.0)
    assert told(bench.take()) == [StopMixing(2)], "the first commit with it"


def test_other_sources_begin_it_again_and_those_that_are_none_any_more_stop() -> None:
    near, gone, far = (Neighbour(peer) for peer in ("p1.0", "p3.0", "p4.0"))
    for node in (near, gone, far):
        node.lose(2)
    both = [(2, [1, 4]), (3, [1, 4])]
    assert shares(near.lose(3)) == [(*what, 0, 2) for what in both]
    assert gone.lose(3) == [StopMixing(2)]
    assert shares(far.lose(3)) == [(*what, 1, 2) for what in both]


def test_a_rebuild_that_names_others_than_were_foreseen_is_what_counts() -> None:
    """The coordinator knows already that stage 3 is made; the others see that with the next commit."""
    node = Neighbour("p1.0")
    node.lose(2, 3)
    node.rebuild(3)
    whole = [1, 3, 4]
    weights = weights_of(node.chain.squared_norms, node.manifest.batch.tokens_per_step, node.manifest)
    made = recipe(2, whole, node.chain.state_ids, weights, node.manifest)
    record = Rebuild(node.chain.head, 1, 2, 1, made.sources, (Seating(2, NEW, "active", 1),), (LEAD,))
    assert shares(told(node.core.decide(record))) == [(2, [1, 3], 0, 2)]


def test_a_holder_that_returns_ends_it() -> None:
    node = Neighbour("p1.0")
    node.lose(2)
    assert node.lose(joins=(Seating(2, Member("p2.0", 2), "active"),)) == [StopMixing(2)]


def test_a_neighbour_that_has_yet_to_apply_the_last_commit_begins_when_it_has() -> None:
    node = Neighbour("p1.0")
    seat = node.core.state.bench.seats[1]
    newest = seat.state.state_id
    seat.phase, seat.state.state_id = SeatPhase.APPLYING, "older"
    assert not node.lose(2)
    assert shares(told(node.core.do(Applied(1, 1, newest, "digest", 1, 0.1)))) == [(2, [1, 3], 0, 2)]


def test_who_begins_anew_in_another_lineage_stops() -> None:
    node = Neighbour("p1.0")
    node.lose(2)
    node.core.state.bench.leave_lineage("other", "it is further")
    assert told(node.core.state.bench.take()) == [StopMixing(2)]


def test_before_the_first_commit_nothing_is_averaged() -> None:
    manifest = a_run()
    core = Core(manifest, "p1.0", holders(manifest))
    leaves = tuple(core.state.chain.seated(2))
    assert not told(core.decide(Roster(core.state.chain.head, 0, (), leaves, (LEAD,))))

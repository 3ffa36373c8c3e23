"""A takeover does not begin the grace of a lost stage anew: members see since when it has no holder."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from protocol.events import Tick
from protocol.ids import Member
from protocol.messages import Heartbeat, Held, Prepare, Promise, Propose
from protocol.records import Rebuild, Roster, Seating, record_id
from protocol.recovery import FIND_LAPSES
from protocol.vacancies import Vacancies
from tests.tools.core import BALLOT, LEAD, Core, a_manifest, holders, sent
from tests.unit.test_protocol_members import a_chain, commit
from tests.unit.test_protocol_recovery import NEW, Lost, a_run

ME = Member("p1.0", 1)
GRACE_S = 60.0


# ---- what a member sees ----


def test_a_stage_is_vacant_from_when_its_last_holder_left() -> None:
    lost = Lost(replicas=2)
    vacancies, chain = Vacancies(lost.chain), lost.chain
    vacancies.look(1.0)
    assert vacancies.since == {}
    first, last = chain.holders(2)
    for leaver, at in ((first, 2.0), (last, 5.0)):
        chain.append(Roster(chain.head, 1, (), (leaver,), (LEAD,)), ())
        vacancies.look(at)
    lost.lose(4)
    for at in (6.0, 7.0):
        vacancies.look(at)
    assert vacancies.since == {2: 5.0, 4: 6.0}
    chain.append(Roster(chain.head, 1, (Seating(2, NEW, "learner"),), (), (LEAD,)), ())
    vacancies.look(8.0)
    assert vacancies.since == {2: 5.0, 4: 6.0}, "who copies is no holder"
    chain.append(Roster(chain.head, 1, (replace(first, role="passive"),), (), (LEAD,)), ())
    vacancies.look(9.0)
    assert vacancies.since == {4: 6.0}


@pytest.mark.parametrize("missed", [False, True])
def test_what_had_a_holder_meanwhile_is_vacant_anew(missed: bool) -> None:
    """Nobody knows for how long he was gone: neither of what was decided between two looks, nor of what was never heard."""
    lost = Lost(2, 4)
    vacancies, chain = Vacancies(a_chain(lost.manifest)), lost.chain
    vacancies._chain = chain
    vacancies.since, vacancies._head = {2: 1.0, 4: 1.0}, "elsewhere" if missed else chain.head
    if not missed:
        back = Seating(2, NEW, "active")
        chain.append(Roster(chain.head, 1, (back,), (), (LEAD,)), ())
        chain.append(Roster(chain.head, 1, (), (back,), (LEAD,)), ())
    vacancies.look(7.0)
    assert vacancies.since == ({2: 7.0, 4: 7.0} if missed else {2: 7.0, 4: 1.0})


def test_with_a_commit_or_a_rebuild_all_begins_anew() -> None:
    lost = Lost(2, 4)
    chain = lost.chain
    vacancies = Vacancies(chain)
    vacancies.since = {2: 1.0, 4: 1.0}
    lost.wish()
    record = lost.rebuild(10.0)
    assert isinstance(record, Rebuild)
    chain.append(record, ())
    vacancies.look(11.0)
    assert vacancies.since == {({2, 4} - {record.stage}).pop(): 1.0}
    commit(chain, lost.manifest)
    vacancies.look(12.0)
    assert set(vacancies.since.values()) == {12.0}


# ---- what follows for who takes over ----


def test_the_grace_goes_on_but_who_is_back_has_time_to_find_the_new_coordinator() -> None:
    find_s = FIND_LAPSES * a_run().timing.lapse_s
    for since, due in ((-100.0, find_s), (8.0 - 3.0, 7.0), (8.0, 10.0)):
        lost = Lost(2)
        lost.recovery.succeed({2: since}, 8.0)
        lost.wish()
        assert lost.next(8.0 + due - 0.1).record is None
        assert isinstance(lost.next(8.0 + due).record, Rebuild)


def test_a_short_grace_is_a_whole_one() -> None:
    lost = Lost(2, manifest=a_run(rebuild_grace_s=1.0))
    lost.recovery.succeed({2: -100.0}, 8.0)
    lost.wish()
    assert lost.next(8.9).record is None
    assert isinstance(lost.next(9.0).record, Rebuild)


def test_the_end_of_a_run_waits_for_a_whole_grace() -> None:
    """There is no way back from it."""
    lost = Lost(0)
    lost.recovery.succeed({0: -100.0}, 8.0)
    assert not lost.next(17.9).is_end
    assert lost.next(18.0).is_end


def test_a_voter_that_takes_over_goes_on_with_the_grace() -> None:
    rules = {"policy": "checkfree", "embedding_copies": 1, "rebuild_grace_s": GRACE_S}
    c = Core(a_manifest(num_block_stages=4, recovery=rules), "p1.0")
    chain, seats = c.state.chain, [*holders(c.manifest), Seating(0, ME, "passive")]
    voters = tuple(s.member for s in seats if s.stage in (0, 1, 4) and s.role == "active")
    c.decide(Roster(chain.head, 0, tuple(seats), (), tuple(dict.fromkeys(voters))))
    commit(chain, c.manifest)

    def pass_time(seconds: float, *heard: str) -> None:
        """p4.0 promises and holds whatever it is asked to."""
        for _ in range(int(seconds * 4)):
            out = c.do(Tick(dict.fromkeys(heard, 0.0)), 0.25)
            for asked in sent(out, Prepare, "p4.0"):
                out += c.tell(Promise(asked.ballot, chain.head, (), ()), "p4.0")
            for asked in sent(out, Propose, "p4.0"):
                c.tell(Held(asked.ballot, record_id(asked.record)), "p4.0")
            for peer in heard:
                c.tell(Heartbeat(1, BALLOT, chain.head, 0, 0), peer)

    c.decide(Roster(chain.head, 1, (), tuple(s for s in seats if s.stage == 2), chain.voters))
    pass_time(20.0, "lead", "p3.0", "p4.0")
    pass_time(8.0, "p3.0", "p4.0")
    assert c.state.coordinator
    said = re.search(r"stage 2 has no holder since step 1; its holder may come back for (\d+) s", c.state.outlook.sentence)
    assert said, c.state.outlook.sentence
    assert GRACE_S - 29.0 <= float(said[1]) <= GRACE_S - 27.0

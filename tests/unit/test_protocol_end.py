"""State that is lost for good ends the run: every node says why and exits with 5; what may come back is waited for."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.commands import Command, Exit
from protocol.events import Tick
from protocol.ids import Ballot, Member
from protocol.messages import LOST_STATE, Heartbeat, Held, Prepare, Promise, Propose, Standing
from protocol.records import Roster, record_id
from tests.tools.core import BALLOT, LEAD, Core, a_manifest, holders, of, says, sent
from tests.unit.test_protocol_members import commit

GRACE_S = 5.0
ALONE = {"policy": "checkfree", "embedding_copies": 0, "rebuild_grace_s": GRACE_S}


class Survivor(Core):
    """p1.0 of a run with one replica per stage, after a step; `lead` alone holds stage 0."""

    def __init__(self, **options: Any) -> None:
        manifest = a_manifest(**{"num_block_stages": 3, "recovery": ALONE} | options)
        super().__init__(manifest, "p1.0")
        seats = tuple(holders(manifest))
        self.decide(Roster(self.state.chain.head, 0, seats, (), tuple(s.member for s in seats)))
        commit(self.state.chain, manifest)

    def pass_time(self, seconds: float, *heard: str) -> list[Command]:
        """These are heard, and their heartbeats come."""
        out: list[Command] = []
        head = self.state.chain.head
        for _ in range(int(seconds * 4)):
            out += self.do(Tick(dict.fromkeys(heard, 0.0)), 0.25)
            for peer in heard:
                out += self.tell(Heartbeat(1, BALLOT, head, 0, 0), peer)
        return out


def test_who_is_told_that_state_is_lost_for_good_exits_with_5_and_the_reason() -> None:
    c = Survivor()
    c.tell(Standing(BALLOT, "waiting", "the run ends at step 1: gone", 1, -1, 0.0, LOST_STATE))
    linger = c.manifest.timing.linger_s
    assert not of(c.pass_time(linger - 0.5, "lead"), Exit)
    c.tell(Standing(BALLOT, "waiting", "waiting for a quorum", 1, -1, 0.0))
    assert of(c.pass_time(60.0), Exit) == [Exit(5, "the run ends at step 1: gone")]


def test_a_voter_takes_over_from_the_only_holder_of_stage_0_and_ends_the_run_after_the_grace() -> None:
    c = Survivor()
    out = c.pass_time(4.5, "p2.0", "p3.0")
    asked = sent(out, Prepare, "p2.0")[-1]
    for peer in ("p2.0", "p3.0"):
        out += c.tell(Promise(asked.ballot, c.state.chain.head, (), ()), peer)
    assert c.state.coordinator
    record = sent(out, Propose, "p2.0")[-1].record
    assert [s.member for s in record.leaves] == [LEAD]
    for peer in ("p2.0", "p3.0"):
        out = c.tell(Held(asked.ballot, record_id(record)), peer)
    out = c.pass_time(GRACE_S - 1.0, "p2.0", "p3.0")
    assert "its holder may come back" in c.state.outlook.sentence
    assert not [m for m in sent(out, Standing) if m.exit_code]
    out = c.pass_time(2.0, "p2.0", "p3.0")
    told = [m for m in sent(out, Standing, "p3.0") if m.exit_code]
    assert {m.exit_code for m in told} == {5}
    assert "stage 0 is lost, and recovery.embedding_copies is 0" in told[0].sentence
    assert of(c.pass_time(60.0), Exit) == [Exit(5, told[0].sentence)]


def test_policy_none_leaves_the_role_to_the_one_that_is_waited_for() -> None:
    c = Survivor(recovery={"policy": "none"})
    out = c.pass_time(200.0, "p2.0", "p3.0")
    assert not sent(out, Prepare)
    assert not of(out, Exit)
    assert "no other node holds its stage" in c.state.outlook.sentence


NO_QUORUM = {"fork_after_s": 30.0, "heartbeat_s": 1.0}
END_S = 30.0 + 3 * 3.0


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("heard", [("p2.0",), ()])
def test_without_a_quorum_only_a_run_on_one_machine_ends_by_itself(heard: tuple[str, ...], local: bool) -> None:
    """Over a network those that hear each other may be the ones that are cut off, while the others train on."""
    c = Survivor(num_block_stages=4, timing=NO_QUORUM, local=local, recovery=ALONE | {"rebuild_grace_s": 60.0})
    out = c.pass_time(END_S, *heard)
    assert not of(out, Exit)
    out = c.pass_time(30.0, *heard)
    assert [e.code for e in of(out, Exit)] == ([5] if local else [])
    assert local == any("stage 0 is lost" in sentence for sentence in says(out))


def test_without_a_quorum_block_stages_are_waited_for() -> None:
    """They can be made again: it is only not known who decides."""
    c = Survivor(num_block_stages=4, timing=NO_QUORUM)
    chain = c.state.chain
    joins = (Member("p1.0", 1), Member("p2.0", 1))
    lost = tuple(s for s in chain.seatings if s.stage == 0)
    copies = tuple(
        type(s)(0, member, role) for s in lost[:1] for member, role in zip(joins, ("active", "passive"), strict=True)
    )
    c.decide(Roster(chain.head, 1, copies, lost, tuple(chain.members())))
    assert not of(c.pass_time(300.0, "p2.0"), Exit)
    assert c.state.ballot == Ballot(1, "lead")

"""What others say and a node must not take as it comes, one lie at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from protocol.chain import Chain
from protocol.checks import payload_misfit
from protocol.coordinator import Coordinator
from protocol.hearing import hear
from protocol.ids import Member
from protocol.messages import Evaluated, Hop, Message, PipeHeader, Route
from protocol.orders import Orders
from protocol.records import Roster, Seating
from protocol.speeds import Speeds
from protocol.view import View
from tests.tools.core import BALLOT, LEAD, a_manifest, holders

MANIFEST = a_manifest()


@pytest.fixture
def chain() -> Chain:
    made = Chain(MANIFEST, LEAD)
    made.append(Roster(made.head, 0, tuple(holders(MANIFEST)), (), (LEAD,)), ())
    return made


def test_a_payload_of_an_amendment_that_cannot_be_is_refused(chain: Chain) -> None:
    route = Route(0, (Hop(0, LEAD.peer), Hop(1, "p1.0"), Hop(2, "p2.0"), Hop(0, LEAD.peer)))
    header = PipeHeader(BALLOT, 1, 1, chain.head, "forward", 1, route)
    assert payload_misfit(header, LEAD.peer, "p1.0", MANIFEST, chain) == ""
    assert payload_misfit(replace(header, route=replace(route, amendment=2)), LEAD.peer, "p1.0", MANIFEST, chain) == ""
    for lie in (replace(route, amendment=-1), replace(route, amendment=1)):
        kind = "forward" if lie.amendment < 0 else "evaluate"
        assert "of amendment" in payload_misfit(replace(header, kind=kind, route=lie), LEAD.peer, "p1.0", MANIFEST, chain)


@pytest.mark.parametrize("claimed", [5e-324, 1e308])
def test_no_claimed_speed_makes_the_shares_useless(claimed: float) -> None:
    speeds, row = Speeds(), [Seating(1, Member(peer, 1), "active") for peer in "ab"]
    speeds.measured(1, row[0].member, claimed)
    speeds.measured(1, row[1].member, 0.1)
    assert all(math.isfinite(share) and share > 0 for share in speeds.shares(row))
    assert math.isfinite(speeds.throughput(row))


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_held_out_loss_that_is_not_finite_is_not_entered(chain: Chain, loss: float) -> None:
    heard: list[Message] = []

    class Ear(Coordinator):
        def on_evaluated(self, peer: str, message: Evaluated) -> None:
            heard.append(message)

    ear = Ear(MANIFEST, LEAD, BALLOT, chain, View(3.0), Orders())
    told = Evaluated(BALLOT, chain.head, 0, loss, 8)
    hear(ear, chain, LEAD, told, 0.0)
    assert heard == []
    hear(ear, chain, LEAD, replace(told, loss_sum=1.0), 0.0)
    assert len(heard) == 1

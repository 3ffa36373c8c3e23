"""What a node's desk hands out: an invite that outlives the node that minted it."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.clock import SystemClock
from node.data.files import BlobFiles
from node.desk import Desk
from node.keys import OrganiserKey, sign_order
from node.ports import UnusableError
from node.serving import Shelf
from protocol.invite import MAX_ADDRESSES, parse
from tests.tools.core import LEAD, Core, a_manifest


def address(peer: int) -> str:
    return f"/ip4/203.0.113.{peer}/tcp/28481/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjh{'abcdefgh'[peer]}x"


def desk_of(own: list[str], others: list[str], tmp_path: Any) -> Desk:
    desk = Desk(SystemClock(), Shelf(BlobFiles(tmp_path)))
    directory = SimpleNamespace(addresses=lambda: own, remembered=lambda: others)
    state = Core(a_manifest(), LEAD.peer, founder=True).state
    desk.open(state, cast(Any, None), cast(Any, directory), cast(Any, None))
    return desk


@pytest.mark.parametrize(
    ("own", "others", "wanted"),
    [
        ([0], [], [0]),
        ([0], [1, 2, 3], [0, 1, 2]),
        ([0, 1], [2], [0, 2, 1]),
        ([0], [0, 1], [0, 1]),
    ],
)
def test_an_invite_names_this_node_and_others_that_were_there(
    own: list[int], others: list[int], wanted: list[int], tmp_path: Any
) -> None:
    desk = desk_of([address(n) for n in own], [address(n) for n in others], tmp_path)
    addresses = parse(desk.invite()).addresses
    assert addresses == tuple(address(n) for n in wanted)
    assert len(addresses) <= MAX_ADDRESSES


def test_orders_of_before_and_what_comes_after_a_stop_are_refused_with_a_reason(tmp_path: Any) -> None:
    key = OrganiserKey.create(tmp_path / "organiser.key")
    manifest = a_manifest(organiser=key.public)
    state = Core(manifest, LEAD.peer, founder=True).state
    passed_on: list[Any] = []
    runtime = SimpleNamespace(dispatch=passed_on.append)
    desk = Desk(SystemClock(), Shelf(BlobFiles(tmp_path)))
    desk.open(state, cast(Any, runtime), cast(Any, None), cast(Any, None))

    def obey(action: Any, serial: int) -> str:
        return desk.obey(json.dumps(dataclasses.asdict(sign_order(key, manifest.run_id, action, serial))).encode())

    assert "passed on" in obey("pause", 7)
    state.orders.take(passed_on[0].message)
    with pytest.raises(ValueError, match="serial 6, which is not above 7"):
        obey("resume", 6)
    state.orders.take(sign_order(key, manifest.run_id, "stop", 8))
    with pytest.raises(ValueError, match="order resume comes too late"):
        obey("resume", 9)
    assert "passed on" in obey("stop", 9), "asked for twice is no mistake"
    assert len(passed_on) == 2


def test_a_node_that_still_starts_says_so(tmp_path: Any) -> None:
    with pytest.raises(UnusableError, match="still starting"):
        Desk(SystemClock(), Shelf(BlobFiles(tmp_path))).invite()

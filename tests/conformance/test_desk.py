"""What a node's desk hands out: an invite that outlives the node that minted it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.clock import SystemClock
from node.data.files import BlobFiles
from node.desk import Desk
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


def test_a_node_that_still_starts_says_so(tmp_path: Any) -> None:
    with pytest.raises(UnusableError, match="still starting"):
        Desk(SystemClock(), Shelf(BlobFiles(tmp_path))).invite()

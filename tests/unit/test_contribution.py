"""What a node is told of its own part: steps, tokens, share of the swarm's work, and totals over restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.contribution import TOTALS_FILE, Contribution, Keeper, Totals
from node.state_store import DirectoryStore
from protocol.sizes import model_parameters, stage_parameters
from tests.tools.core import a_manifest

MANIFEST = a_manifest(num_block_stages=2, microbatches=4)


def committed(stage: int, step: int, **bits: str) -> dict[str, object]:
    return {"stage": stage, "step": step, "contributors": bits}


def test_steps_tokens_and_share() -> None:
    mine = Contribution(MANIFEST, "me")
    assert mine.share is None
    assert not mine.committed(committed(1, 5, other="f"))
    assert mine.committed(committed(1, 6, me="3", other="c"))
    assert not mine.committed(committed(1, 6, me="3", other="c")), "counted twice"
    assert not mine.committed(committed(0, 6, me="6", other="9"))
    assert not mine.committed(committed(1, 7, me="f"))
    assert (mine.first_step, mine.steps) == (6, 2)
    assert mine.tokens == (3 + 4) * 8, "microbatches 0, 1, 2 of step 6, which one of them passed twice, and all of step 7"
    assert mine.as_json() == {
        "steps": 2,
        "tokens": 56,
        "first_step": 6,
        "share": mine.share,
        "stages": [{"stage": 0, "tokens": 2 * 8}, {"stage": 1, "tokens": (2 + 4) * 8}],
    }
    work = 6 * stage_parameters(MANIFEST, 1) + 2 * stage_parameters(MANIFEST, 0)
    assert mine.share == work / (3 * 4 * model_parameters(MANIFEST))


def test_a_node_alone_does_all_the_work() -> None:
    mine = Contribution(MANIFEST, "me")
    for step in (1, 2):
        for stage in range(3):
            mine.committed(committed(stage, step, me="f"))
    assert (mine.share, mine.steps, mine.tokens) == (1.0, 2, 64)


def test_totals_are_kept(tmp_path: Path) -> None:
    store = DirectoryStore.open(tmp_path)
    assert Totals.load(store) == Totals()
    mine = Contribution(MANIFEST, "me")
    mine.committed(committed(1, 6, me="3"))
    first = Keeper(store)
    assert first.welcome == ""
    for uptime_s in (30.0, 60.0):
        assert first.keep(mine, uptime_s) == "", "saved twice, counted once"
    again = Keeper(store)
    assert again.welcome == "welcome back: 1 step and 16 tokens in 1 start, up 1m00s so far"
    assert again.keep(None, 5.0) == ""
    assert Totals.load(store) == Totals(1, 1, 16, 60.0), "a start that never came to a run was counted"
    assert again.keep(Contribution(MANIFEST, "me"), 5.0) == "1 step and 16 tokens in 2 starts, up 1m05s"
    assert Totals.load(store) == Totals(2, 1, 16, 65.0)


def test_a_full_disk_costs_only_the_totals(tmp_path: Path) -> None:
    keeper = Keeper(DirectoryStore(tmp_path / "gone"))
    assert keeper.keep(Contribution(MANIFEST, "me"), 1.0) == ""
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"steps": -1}', b'{"tokens": "x"}', b"\xff", b'{"steps": 1e999}'])
def test_a_strange_file_counts_as_none(content: bytes, tmp_path: Path) -> None:
    store = DirectoryStore.open(tmp_path)
    (tmp_path / TOTALS_FILE).write_bytes(content)
    assert Totals.load(store) == Totals()

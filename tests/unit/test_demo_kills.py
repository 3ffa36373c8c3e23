"""Which stages the demo kills, and what it tells of what follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.demo.kills import Kill, kills_of, told
from node.demo.material import NO_DATA, manifest_for
from node.demo.run import DemoOptions
from node.ports import UnusableError


def test_a_long_demo_kills_a_middle_stage_and_then_stage_0() -> None:
    assert kills_of((), 4, 150, "checkfree_plus") == [Kill(2, 75), Kill(0, 112)]
    assert kills_of((), 3, 150, "checkfree") == [Kill(2, 75)]


def test_nobody_is_killed_in_a_short_demo_or_where_nothing_would_regrow() -> None:
    assert kills_of((), 4, 20, "checkfree_plus") == []
    assert kills_of((), 4, 150, "none") == []
    assert kills_of(("none",), 4, 150, "checkfree_plus") == []


def test_kills_are_carried_out_in_their_order() -> None:
    assert kills_of(("0@30", "2@10"), 4, 150, "checkfree") == [Kill(2, 10), Kill(0, 30)]


@pytest.mark.parametrize(("kill", "copies"), [((), 0), (("2@10",), 0), (("2@10", "0@30"), 2)])
def test_a_stage_0_that_is_to_be_killed_has_copies(kill: tuple[str, ...], copies: int) -> None:
    options = DemoOptions(block_stages=3, kill=kill)
    assert manifest_for(options, NO_DATA, 0).recovery.embedding_copies == copies


def test_under_policy_redundant_stage_0_has_a_copy_like_any_other() -> None:
    options = DemoOptions(block_stages=3, policy="redundant", kill=("0@30",))
    recovery = manifest_for(options, NO_DATA, 0).recovery
    assert (recovery.policy, recovery.embedding_copies) == ("redundant", 0)


@pytest.mark.parametrize("word", ["2", "@5", "2@", "x@5", "2@x", "5@5", "-1@5", "2@0", "2@150"])
def test_what_cannot_be_done_is_told(word: str) -> None:
    with pytest.raises(UnusableError, match="--kill"):
        kills_of((word,), 4, 150, "checkfree")


def test_events_in_plain_words() -> None:
    sources = [{"stage": 1, "coefficient": 0.44}, {"stage": 3, "coefficient": 0.56}]
    rebuild = {"type": "rebuild", "stage": 2, "sources": sources, "generation": 1}
    assert told(rebuild) == "stage 2 is rebuilt: 0.44 of stage 1 + 0.56 of stage 3 (generation 1)"
    assert told({"type": "transfer", "what": "stage 2", "bytes": 1_300_000, "s": 0.2}) == "stage 2: 1.3 MB handed over in 0.2 s"
    back = {"type": "rolled_back", "epoch": 1, "from_step": 34, "step": 30, "stages": [2]}
    assert told(back) == "everybody goes back from step 34 to step 30, as it was saved"
    assert told({"type": "loss", "step": 1}) == ""


def test_under_policy_checkpoint_the_demo_saves_in_its_own_folder(tmp_path: Path) -> None:
    options = DemoOptions(block_stages=3, policy="checkpoint", kill=("0@30",))
    recovery = manifest_for(options, NO_DATA, 0, tmp_path).recovery
    assert (recovery.checkpoint_every, recovery.checkpoint_store) == (10, str(tmp_path / "saved"))
    assert recovery.embedding_copies == 0, "stage 0 is saved like any other"

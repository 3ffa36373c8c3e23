"""Notes become sentences."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from node.page.chronicle import SILENT_NOTES, Chronicle

ROOT = Path(__file__).parents[2]
TWO = [{"stage": 2, "coefficient": 0.44, "state_id": "ab"}, {"stage": 4, "coefficient": 0.56, "state_id": "cd"}]


def chronicle(held: bool = True, limit: int = 50) -> Chronicle:
    return Chronicle(lambda: 7.0, lambda peer: peer[-4:], "QmMe", lambda _: held, limit)


def texts(told: Chronicle) -> list[str]:
    return [entry["text"] for entry in told.latest()]


# One of each, as the code makes them.
NOTES: dict[str, tuple[dict[str, Any], str]] = {
    "joined": ({"stage": 1, "peer": "QmBert", "role": "learner", "step": 3}, "Bert copies stage 1."),
    "left": ({"stage": 1, "peer": "QmBert", "step": 3}, "Bert does not hold stage 1 any more."),
    "lost": (
        {"stage": 1, "peer": "QmBert", "reason": "x", "step": 3, "silent_s": 3.0},
        "Bert (stage 1) was given up after 3.0 s of",
    ),
    "suspected": (
        {"peer": "QmBert", "by": "QmAnna", "reason": "1.2.3.4:5 broke"},
        "Bert is suspected: Anna does not hear it ((an add",
    ),
    "promoted": ({"stage": 0, "peer": "QmBert", "step": 3}, "Bert had an exact copy of stage 0"),
    "recovered": (
        {"stage": 1, "rung": "older_copy", "peer": "QmBert", "generation": 1, "step": 3, "detect_s": 3.0, "grace_s": 0.0},
        "Stage 1 trains again at Bert, by older copy (silence 3.0 s).",
    ),
    "provenance": (
        {"stage": 1, "generation": 1, "state_id": "a", "step": 3, "rung": "seed"},
        "This node's stage 1 is ready: made fro",
    ),
    "averaged": (
        {"stage": 1, "step": 3, "average_s": 0.5, "part": 1, "parts": 2, "bytes": 9},
        "This node averaged its share of",
    ),
    "transfer": (
        {
            "what": "stage 1",
            "bytes": 4_000_000,
            "from": ["QmAnna", "QmBert"],
            "to": "QmMe",
            "s": 2.0,
            "step": 3,
            "state_id": "a",
        },
        "Stage 1 came from Anna and Bert: 4.0 MB in 2.0 s.",
    ),
    "voided": ({"step": 4, "attempt": 1, "reason": "Bert broke"}, "Step 4 is run again: Bert broke."),
    "rerouted": (
        {
            "stage": 1,
            "peer": "QmBert",
            "to": {"QmAnna": "6"},
            "moved": "6",
            "excluded": False,
            "reason": "x",
            "step": 4,
            "attempt": 1,
        },
        "2 microbatches of Bert at stage 1 go through Anna instead.",
    ),
    "moved": ({"peer": "QmBert", "stage": 1, "to": 2, "step": 3}, "Bert moves from stage 1 to stage 2."),
    "took_over": ({"term": 2, "from": "QmBert", "step": 3}, "This node coordinates the run now, after Bert."),
    "forked": ({"record": "ab", "peers": ["QmMe", "QmBert"], "step": 3}, "Without a quorum this node and 1 others"),
    "yielded": ({"to": "QmBert", "step": 3}, "This node gave up its lineage, and all state, for that of Bert."),
    "caught_up": ({"record": "ab", "step": 3}, "This node had missed too much, and goes on from step 3."),
    "rolled_back": (
        {"epoch": 1, "from_step": 9, "step": 5, "stages": [2, 3], "sources": ["a"]},
        "Everybody went back from step 9 to",
    ),
    "save_failed": ({"stage": 1, "step": 3, "reason": "/mnt/x: full"}, "Stage 1 could not be saved: (a path): full."),
    "restore_failed": ({"stage": 1, "source": "ab", "reason": "gone"}, "Stage 1 could not be read back: gone."),
    "digest_mismatch": (
        {"stage": 1, "peer": "QmBert", "digest": "a", "own": "b", "step": 3},
        "Bert holds other weights of stage 1",
    ),
    "uncounted": ({"stage": 2, "step": 7, "microbatches": "5"}, "Step 7 does not count what this node computed of stage 2."),
    "refused": ({"peer": "QmBert", "reason": "nonsense"}, "Something from Bert was refused: nonsense."),
    "evaluation_skipped": ({"step": 3, "reason": "a member was lost"}, "The evaluation was skipped: a member was lost."),
    "shadow_sealed": ({"stage": 1, "step": 3, "whole": True}, "What this node kept of stage 1 is whole."),
}


@pytest.mark.parametrize("type_", NOTES)
def test_a_note_is_told_in_plain_words(type_: str) -> None:
    fields, beginning = NOTES[type_]
    told = chronicle()
    told.note(type_, fields)
    [entry] = told.latest()
    assert entry["text"].startswith(beginning)
    assert (entry["serial"], entry["wall"], entry["kind"], entry["step"]) == (1, 7.0, type_, fields.get("step", 0))


def test_every_note_of_the_code_is_told_or_left_out_on_purpose() -> None:
    sources = [path.read_text() for folder in ("protocol", "node") for path in (ROOT / folder).rglob("*.py")]
    made = {name for text in sources for name in re.findall(r'\b(?:Note|_note|sink\.note)\(\s*"(\w+)"', text)}
    assert len(made) > 25
    handled = set(NOTES) | {"rebuild", "committed", "loss"} | SILENT_NOTES
    assert made - handled == set()
    assert not SILENT_NOTES & set(NOTES)


def test_a_rebuild_is_told_with_what_it_is_made_of_and_who_gets_it() -> None:
    told = chronicle()
    told.note("rebuild", {"stage": 3, "policy": "checkfree", "sources": TWO, "generation": 1, "step": 8})
    told.note("granted", {"stage": 3, "role": "active", "generation": 1})
    told.note("joined", {"stage": 3, "peer": "QmBert", "role": "active", "step": 8})
    [entry] = told.latest()
    assert entry["text"] == "Stage 3 is rebuilt from stages 2 and 4, .44 / .56; handed to Bert."
    assert entry["sources"] == [{"stage": 2, "coefficient": 0.44}, {"stage": 4, "coefficient": 0.56}]
    assert (entry["stage"], entry["peer"]) == (3, "QmBert")


def test_a_rebuild_that_seats_nobody_here_is_told_with_the_next_commit() -> None:
    told = chronicle()
    told.note("rebuild", {"stage": 3, "policy": "copy", "sources": TWO[:1], "generation": 1, "step": 8})
    told.note("loss", {"step": 9, "value": 5.0, "tokens": 9})
    assert texts(told) == ["Stage 3 is rebuilt from stage 2."]


def test_a_stage_without_holder_is_lost_whoever_says_so() -> None:
    told = chronicle(held=False)
    told.note("left", {"stage": 3, "peer": "QmBert", "step": 8})
    [entry] = told.latest()
    assert (entry["kind"], entry["level"]) == ("lost", "bad")
    assert entry["text"] == "Stage 3 lost its last holder, Bert."


def test_own_seats_that_end_say_why() -> None:
    told = chronicle()
    told.note("left", {"stage": 3, "reason": "missed the commit of step 7"})
    assert texts(told) == ["This node does not hold stage 3 any more: missed the commit of step 7."]


def test_silence_is_told_once_and_its_end() -> None:
    told, stages = chronicle(), {"QmBert": [3]}
    for silent in (["QmBert"], ["QmBert"], []):
        told.silent(silent, lambda peer: stages.get(peer, []), 8)
    assert texts(told) == ["Nothing is heard of Bert (stage 3): it is suspected.", "Bert is heard again."]
    told.silent(["QmBert"], lambda peer: stages.get(peer, []), 9)
    assert told.is_silent("QmBert")
    told.silent([], lambda _: [], 9)  # it is off the roster, not back
    assert told.latest()[-1]["kind"] == "suspected"


def test_the_first_commit_with_own_work_is_told_once() -> None:
    told = chronicle()
    for step, bits in ((3, "0"), (4, "3"), (5, "3")):
        told.note("committed", {"stage": 1, "step": step, "contributors": {"QmMe": bits, "QmBert": "f"}})
    assert texts(told) == ["This node's work is in the run's weights since step 4."]


def test_the_same_again_takes_the_place_of_what_was_told() -> None:
    told = chronicle()
    for _ in range(3):
        told.note("refused", {"peer": "QmBert", "reason": "nonsense"})
    [entry] = told.latest()
    assert (entry["serial"], entry["count"], entry["replaces"]) == (3, 3, 2)


def test_entries_are_bounded_and_asked_for_by_serial() -> None:
    told = chronicle(limit=5)
    for step in range(9):
        told.note("voided", {"step": step, "reason": "x"})
    assert [entry["serial"] for entry in told.latest()] == [5, 6, 7, 8, 9]
    assert [entry["serial"] for entry in told.latest(after=6)] == [7, 8, 9]
    assert [entry["serial"] for entry in told.latest(after=6, most=2)] == [8, 9]
    assert told.latest(most=0) == []
    assert told.serial == 9


def test_who_has_just_come_is_named_as_soon_as_its_name_is_known() -> None:
    names = {"QmBert": "QmBert"}
    told = Chronicle(lambda: 7.0, names.__getitem__, "QmMe", lambda _: True)
    told.note("joined", {"stage": 1, "peer": "QmBert", "role": "active", "step": 3})
    assert texts(told) == ["QmBert computes stage 1."]
    names["QmBert"] = "bert"
    assert texts(told) == ["bert computes stage 1."]

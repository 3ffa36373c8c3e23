"""One run in which every stage is lost: its only holder vanishes behind a dead link, is frozen, or is killed, one by one.

CheckFree+ with four block stages, one replica per stage, a newcomer for each fault. The training text consists of numbered
documents, so that what was trained on can be listed.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from node.demo.process import NodeProcess
from node.manifest_file import load
from protocol.manifest import Manifest
from tests.integration.ends import end_all_at_once
from tests.integration.seen import assert_counted_once, credited, says
from tests.integration.test_takeover import assert_one_history
from tests.tools.contract import violations
from tests.tools.crowd import LOOK_S, Crowd, Status, Told
from tests.tools.material import write_manifest
from tests.tools.numbered import VOCAB, documents_of, write_documents
from tests.tools.relay import Faults
from tests.tools.swarm import Swarm, swarm, wait_for

NUM_BLOCK_STAGES, NUM_MICROBATCHES, ROWS, CONTEXT, NUM_DOCUMENTS = 4, 8, 4, 32, 640
CALM = 60
"""Steps before the first fault: the loss is on its way down by then."""
BEFORE_STEPS, AFTER_STEPS = 10, 5
"""The loss before a fault is the mean of so many steps, and after it of so many."""
BACK_STEPS = 20
"""Within so many steps after a fault the loss must be below what it was before."""
LIMIT_S = 120.0
LAN = "--lan"
"""The manifest does not say that all is on one machine: there who hears nobody ends, as there is no network to come back."""
SOURCES = {1: [2], 2: [1, 3], 3: [2, 4], 4: [3]}
"""Of what each block stage is made: CheckFree's neighbours, CheckFree+'s swap partner at either end."""


def write_run(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return write_manifest(
        folder,
        num_block_stages=NUM_BLOCK_STAGES,
        model__hidden_size=32,
        model__intermediate_size=64,
        model__vocab_size=VOCAB,
        model__initializer_range=0.06,
        data__train=[write_documents(folder / "documents.bin", NUM_DOCUMENTS, CONTEXT)],
        batch__microbatch_samples=ROWS,
        batch__global_samples=ROWS * NUM_MICROBATCHES,
        batch__context_tokens=CONTEXT,
        optimizer__learning_rate=4e-4,
        optimizer__beta2=0.9,
        max_steps=100_000,
        evaluation__every_steps=0,
        recovery__policy="checkfree_plus",
        recovery__rebuild_grace_s=0.0,
        recovery__newcomer_wait_s=LIMIT_S,
        timing__heartbeat_s=0.5,
        timing__lapse_heartbeats=6,
        local=False,
    )


@dataclass
class Story:
    """What happened so far. `faults`: (what, stage, last step before)."""

    crowd: Crowd
    faults: list[tuple[str, int, int]] = field(default_factory=list)
    origins: list[dict[str, Any]] = field(default_factory=list)
    """Of each lost stage, how it came back, as /status told."""

    def lose(self, what: str, stage: int, strike: Callable[[NodeProcess], None], *args: str) -> NodeProcess:
        """The only holder is struck; a newcomer is started; when all is well again and the loss had time, the victim."""
        crowd = self.crowd
        victim = holder(crowd, wait_settled(crowd), stage)
        strike(victim)
        self.faults.append((what, stage, crowd.step()))
        crowd.come(f"newcomer{len(self.faults)}", LAN, *args, staying=crowd.living())
        self.origins.append(wait_back(crowd, stage, self.faults[-1][2]))
        wait_settled(crowd)
        crowd.wait_step(self.faults[-1][2] + BACK_STEPS)
        return victim

    def welcome_back(self, victim: NodeProcess, stage: int, resume: Callable[[NodeProcess], None]) -> None:
        """Who was only out of reach finds that its stage goes on without it, takes a seat as a newcomer does, and leaves."""
        crowd = self.crowd
        before = crowd.made.status(holder(crowd, crowd.look(), stage))
        resume(victim)
        told = crowd.whole()
        assert says(victim, f"stage {stage} is not held here any more") or crowd.made.events(victim, "caught_up")
        [seat] = [row for row in told[victim.name]["seats"] if row["role"] == "active"]
        assert seat["provenance"]["rung"] == "copy", seat
        assert seat["generation"] == seat_of(told, seat["stage"])["generation"]
        assert seat_of(told, stage)["generation"] == seat_of({"": before}, stage)["generation"]
        crowd.leave(victim)


def seat_of(told: Told, stage: int) -> Status:
    """The first active seat at this stage."""
    rows = [row for status in told.values() for row in status["seats"] if row["stage"] == stage and row["role"] == "active"]
    assert rows, f"nobody computes for stage {stage}: {told}"
    found: Status = rows[0]
    return found


def holder(crowd: Crowd, told: Told, stage: int) -> NodeProcess:
    """Who computes for the stage."""
    return next(n for n in crowd.living() if n.name in told and seat_of_node(told[n.name], stage).get("role") == "active")


def seat_of_node(status: Status, stage: int) -> Status:
    found: Status = next((row for row in status["seats"] if row["stage"] == stage), {})
    return found


def wait_settled(crowd: Crowd) -> Told:
    """/status of everybody once each stage is held by a node of its own and two others have exact copies of stage 0."""

    def settled() -> Told | None:
        told = crowd.look()
        return told if len(told) == len(crowd.living()) and all(is_settled(s, told) for s in told.values()) else None

    found: Told = wait_for("each stage has its own node, and there are two copies", settled, LIMIT_S, crowd.situation, LOOK_S)
    return found


def is_settled(status: Status, told: Told) -> bool:
    """By what this node knows of the roster, and by what it holds."""
    roster, peers = status["roster"], sorted(each["peer"] for each in told.values())
    active = {row["stage"]: row["peer"] for row in roster if row["role"] == "active"}
    copies = [row["peer"] for row in roster if (row["stage"], row["role"]) == (0, "passive")]
    holds = all(seat["digest"] and seat["step"] >= status["step"] - 1 for seat in status["seats"])
    own = sorted(active.values()) == peers and sorted(active) == list(range(NUM_BLOCK_STAGES + 1))
    return own and holds and len(set(copies)) == 2 and len(roster) == len(active) + len(copies)


def wait_back(crowd: Crowd, stage: int, since: int) -> dict[str, Any]:
    """How the stage came back: its provenance at whoever computes for it now, once a step is committed with it."""

    def back() -> dict[str, Any] | None:
        told = crowd.look()
        rows = [seat_of_node(status, stage) for status in told.values()]
        new = [row for row in rows if row.get("role") == "active" and row["provenance"].get("step", -1) >= since]
        return new[0] if new and crowd.step() > since + 1 else None

    found: dict[str, Any] = wait_for(f"stage {stage} is back", back, LIMIT_S, crowd.situation, LOOK_S)
    return found


@pytest.mark.full
@pytest.mark.timeout(900)
def test_every_stage_is_lost_and_regrows(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    with ExitStack() as stack, swarm(tmp_path) as made:
        story = Story(launch_behind_links(made, path, stack))
        crowd = story.crowd
        crowd.wait_step(CALM)
        cut_off = story.lose("black hole", 2, crowd.cut_off, *crowd.far(stack, "newcomer1", Faults()))
        story.welcome_back(cut_off, 2, crowd.heal)
        frozen = story.lose("SIGSTOP", 3, crowd.sleep)
        story.welcome_back(frozen, 3, crowd.wake)
        for stage in range(NUM_BLOCK_STAGES + 1):
            story.lose("SIGKILL", stage, crowd.kill)
        crowd.wait_step(max(200, crowd.step() + AFTER_STEPS))
        told = wait_settled(crowd)
        assert [seat_of(told, stage)["generation"] for stage in range(NUM_BLOCK_STAGES + 1)] == [0, 1, 2, 2, 1]
        living = crowd.living()
        assert end_all_at_once(living) == [0] * len(living)
        assert_origins(story)
        assert_losses(story)
        assert_nothing_lost_or_doubled(story, load(path), tmp_path / "documents.bin")


def launch_behind_links(made: Swarm, path: Path, stack: ExitStack) -> Crowd:
    crowd = Crowd(made)
    invite = made.running(made.start(path, "--stage", "0", LAN, *crowd.far(stack, "s0", Faults()), name="s0")).invite
    for stage in range(1, NUM_BLOCK_STAGES + 1):
        made.join(invite, "--stage", str(stage), LAN, *crowd.far(stack, f"s{stage}", Faults()), name=f"s{stage}")
    for node in made.nodes:
        made.running(node)
    return crowd


def assert_origins(story: Story) -> None:
    """Every block stage was made of its neighbours; stage 0 goes on at a node that had an exact copy. The coordinators said
    so, each time once."""
    told = [e for events in story.crowd.logs().values() for e in events if e["type"] == "recovered"]
    stages = Counter((event["stage"], event["rung"]) for event in told)
    assert stages == Counter((stage, "recovery" if stage else "promotion") for _, stage, _ in story.faults), told
    for (what, stage, _), seat in zip(story.faults, story.origins, strict=True):
        where, provenance = f"{what} at stage {stage}: {seat}", seat["provenance"]
        assert provenance["rung"] == ("recovery" if stage else "promotion"), where
        if stage:
            assert [source["stage"] for source in provenance["sources"]] == SOURCES[stage], where
            assert sum(source["coefficient"] for source in provenance["sources"]) == pytest.approx(1.0), where


def assert_losses(story: Story) -> None:
    """Finite throughout; after each fault soon below what it was before. Prints how it went."""
    losses = story.crowd.losses()
    assert sorted(losses) == list(range(1, len(losses) + 1))
    assert len(losses) >= 200
    assert all(map(math.isfinite, losses.values()))
    late, worst = [], {}
    for what, stage, at in story.faults:
        before = statistics.mean(losses[step] for step in range(at - BEFORE_STEPS + 1, at + 1))
        after = [losses[step] for step in range(at + 1, at + BACK_STEPS + 1)]
        means = {n: statistics.mean(after[n - AFTER_STEPS : n]) for n in range(AFTER_STEPS, BACK_STEPS + 1)}
        back = next((n for n, mean in means.items() if mean < before), None)
        late += [] if back else [(what, stage)]
        worst[what, stage] = max(after) - before
        told = {"fault": what, "stage": stage, "step": at, "loss_before": round(before, 3), "last": round(losses[at], 3)}
        print(json.dumps(told | {"worst_after": round(max(after), 3), "back_after_steps": back}))
    print(json.dumps({"steps": len(losses), "first_loss": round(losses[1], 3), "last_loss": round(losses[len(losses)], 3)}))
    assert late == []
    assert worst["SIGKILL", 1] > 0, "a copy of its partner in place of the first block stage is felt"
    assert losses[len(losses)] < 0.75 * losses[1]


def assert_nothing_lost_or_doubled(story: Story, manifest: Manifest, documents: Path) -> None:
    """By the event logs of all, the dead included."""
    crowd, steps = story.crowd, len(story.crowd.losses())
    logs = crowd.logs()
    assert_counted_once(logs, NUM_MICROBATCHES)
    assert_one_history(crowd.made)
    assert crowd.num_compared >= 20
    assert not [line for log in logs.values() for event in log for line in violations("event", event)]
    struck = {(stage, at) for _, stage, at in story.faults}
    for stage in range(NUM_BLOCK_STAGES + 1):
        missing = set(range(1, steps + 1)) - credited(logs, stage).keys()
        assert {(stage, step) for step in missing} <= struck | {(stage, steps)}, "the last words of a killed node may be lost"
    counted = [(step, m) for step, found in credited(logs, 0).items() for m in found]
    seen = documents_of(documents, manifest, counted)
    epochs, rest = divmod(len(counted) * ROWS, NUM_DOCUMENTS)
    assert len(counted) == NUM_MICROBATCHES * len(credited(logs, 0)) >= NUM_MICROBATCHES * (steps - 1)
    for epoch in range(epochs):
        assert seen[epoch] == Counter(range(NUM_DOCUMENTS)), f"epoch {epoch}"
    assert not rest or (sum(seen[epochs].values()), set(seen[epochs].values())) == (rest, {1}), "the epoch that has begun"
    print(json.dumps({"epochs": epochs, "documents_each": NUM_DOCUMENTS, "states_compared": crowd.num_compared}))

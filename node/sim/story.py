"""What happened in a simulated swarm, for people."""

from __future__ import annotations

import re

from node.sim.heap import World
from node.sim.invariants import Invariants
from node.sim.scenario import Scenario
from protocol.commands import Note

LONG_HEX = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{24,}\b")


def scenario_of(scenario: Scenario) -> list[str]:
    """The swarm and the fault."""
    manifest = scenario.manifest
    policy = manifest.recovery.policy
    lines = [
        f"seed {scenario.seed}: {len(scenario.nodes)} nodes, {manifest.num_block_stages} block stages, policy {policy},"
        f" {manifest.batch.num_microbatches} microbatches, max_in_flight {manifest.max_in_flight}",
        f"fault: {scenario.strike}; duplicates {scenario.duplicate:.0%}, reordered {scenario.reorder:.0%}",
    ]
    for at, spec in scenario.nodes:
        what = "founder" if spec.founder else "joins"
        lines.append(
            f"{at:8.2f} {spec.member.peer} {what}, wishes stage {spec.wished_stage}, {spec.unit_s * 1e3:.0f} ms a pass"
        )
    return lines


def story_of(world: World, watch: Invariants, limit: int) -> list[str]:
    """The last `limit` lines of what the nodes noted and said, the roster, and the commits."""
    story = [entry for entry in world.story if not (isinstance(entry[2], Note) and entry[2].type == "loss")]
    lines = [f"... {len(story) - limit} lines left out"] if len(story) > limit else []
    lines += [f"{at:8.2f} {who}: {_line(what)}" for at, who, what in story[-limit:]]
    seats = sorted((stage, member.peer, seating.role) for (stage, member), seating in watch.place.seats.items())
    lines.append("roster: " + ", ".join(f"{stage}:{peer}({role})" for stage, peer, role in seats))
    lines.append(f"{len(watch.commits)} commits, {world.num_events} events, {world.now:.1f} virtual seconds")
    return lines


def _line(what: str | Note) -> str:
    if isinstance(what, str):
        return what
    fields = " ".join(f"{name}={value}" for name, value in what.fields.items() if name != "ballot")
    return LONG_HEX.sub(r"\1", f"{what.type} {fields}")

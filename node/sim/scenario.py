"""A random swarm and a random fault, from one seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from node.sim.faults import COORDINATOR, COORDINATOR_PHASES, SEAT_PHASES, Phase, Strike
from node.sim.nodes import NodeSpec
from protocol.ids import Member
from protocol.manifest import Manifest, from_mapping

MAX_NODES = 12
STEPS_BEFORE = 5
STEPS_AFTER = 5


@dataclass(frozen=True, slots=True)
class Scenario:
    """What one seed stands for."""

    seed: int
    manifest: Manifest
    nodes: tuple[tuple[float, NodeSpec], ...]
    """(when it boots, which it is)."""
    strike: Strike
    duplicate: float
    reorder: float
    takeover: str = ""
    """Phase before which the coordinator goes, where the scenario was made for that."""


def make_scenario(seed: int) -> Scenario:
    """Deterministic: the seed is all that it depends on."""
    return _make(random.Random(seed), seed, None)


def make_takeover(seed: int, phase: Phase) -> Scenario:
    """The coordinator dies for good, or for others, just before it (or its seat, the first of its stage) does something of the
    phase; every stage has another replica, and the others are a quorum."""
    return _make(random.Random(f"{phase} {seed}"), seed, phase)


def _make(rng: random.Random, seed: int, phase: Phase | None) -> Scenario:
    num_block_stages = rng.randint(2, 5)
    replicas = _replicas(rng, num_block_stages + 1)
    if phase:
        replicas = [2 if num_block_stages > 2 else rng.choice((2, 3))] * (num_block_stages + 1)
    at_step = STEPS_BEFORE + rng.randint(1, 3)
    manifest = from_mapping(a_manifest(rng, num_block_stages, min(replicas), at_step + STEPS_AFTER + 3, seed))
    nodes = _nodes(rng, replicas)
    strike = _strike(rng, replicas, manifest, at_step)
    if phase:
        kind = rng.choice(("crash", "crash", "restart", "freeze"))
        for_s = {"crash": 0.0, "restart": rng.uniform(0.1, 2.0), "freeze": rng.choice((2.0, 4.0))}[
            kind
        ] * manifest.timing.lapse_s
        founder = next(spec for _, spec in nodes if spec.founder)
        stage = COORDINATOR if phase in COORDINATOR_PHASES else founder.wished_stage
        strike = replace(strike, kind=kind, stage=stage, replica=0, phase=phase, for_s=for_s)  # type: ignore[arg-type]
    return Scenario(seed, manifest, nodes, strike, rng.choice((0.01, 0.05, 0.2)), rng.choice((0.01, 0.05, 0.1)), phase or "")


def _replicas(rng: random.Random, num_stages: int) -> list[int]:
    replicas = [rng.choice((1, 1, 2, 2, 3)) for _ in range(num_stages)]
    while sum(replicas) > MAX_NODES:
        replicas[max(range(num_stages), key=replicas.__getitem__)] -= 1
    least, second = sorted(range(num_stages), key=replicas.__getitem__)[:2]
    replicas[second] = replicas[least]  # so that one of the two is not the founder's stage
    return replicas


def a_manifest(rng: random.Random, stages: int, start_replicas: int, steps: int, seed: int) -> dict[str, Any]:
    """A run of a few small stages, as YAML holds it."""
    microbatches = rng.randint(3, 12)
    policies = ["none", "none", "checkfree"] + ["checkfree_plus"] * 2 * (stages >= 4)
    shard = {"digest": "0" * 64, "num_bytes": 1 << 20, "num_tokens": 1 << 19}
    model = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2 * stages}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    return {
        "name": "sim",
        "seed": seed,
        "model": model | heads,
        "num_block_stages": stages,
        "start_replicas": start_replicas,
        "data": {"train": [shard], "validation": [shard] if rng.random() < 0.4 else []},
        "batch": {
            "microbatch_samples": 1,
            "global_samples": microbatches,
            "context_tokens": 128,
            "max_in_flight": rng.choice((0, 1, 2, 4)),
        },
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": rng.choice((0, 4)), "clip_norm": rng.choice((0.0, 1.0))},
        "max_steps": steps,
        "recovery": {"policy": rng.choice(policies), "embedding_copies": rng.choice((0, 1, 2))},
        "timing": {"first_microbatch_s": rng.choice((5.0, 20.0))},
        "evaluation": {"every_steps": rng.choice((0, 2, 3)), "num_microbatches": rng.randint(1, 4)},
    }


def _nodes(rng: random.Random, replicas: list[int]) -> tuple[tuple[float, NodeSpec], ...]:
    """One node per seat. The last to boot is one without whom the run cannot start: so all are there at the start."""
    seats = [stage for stage, count in enumerate(replicas) for _ in range(count)]
    rng.shuffle(seats)
    if rng.random() < 0.7:
        seats.sort(key=lambda stage: stage != 0)
    last = max(i for i, stage in enumerate(seats) if i and replicas[stage] == min(replicas[s] for s in seats[1:]))
    seats.append(seats.pop(last))
    wishes = rng.random() < 0.6 or len(set(replicas)) > 1
    nodes = []
    for index, stage in enumerate(seats):
        founder, is_last = index == 0, index == len(seats) - 1
        boot_s = 0.0 if founder else 12.0 if is_last else rng.uniform(0.0, 4.0)
        member = Member(f"peer{index:02d}", rng.randint(1, 9))
        wished = stage if wishes or founder else -1
        nodes.append((boot_s, NodeSpec(member, f"node-{index}", founder, wished, rng.uniform(0.005, 0.05))))
    return tuple(nodes)


def _strike(rng: random.Random, replicas: list[int], manifest: Manifest, at_step: int) -> Strike:
    lapse_s = manifest.timing.lapse_s
    coordinator = rng.random() < 0.2
    stage = COORDINATOR if coordinator else rng.randrange(len(replicas))
    phases = COORDINATOR_PHASES if coordinator else SEAT_PHASES
    kind = rng.choice(("crash", "crash", "freeze", "freeze", "restart"))
    long = {"freeze": rng.choice((0.3, 0.8, 1.5, 4.0)) * lapse_s, "restart": rng.uniform(0.1, 2.0) * lapse_s}
    return Strike(
        kind,  # type: ignore[arg-type]
        stage,
        at_step,
        rng.choice(phases),
        replica=0 if coordinator else rng.randrange(replicas[stage]),
        skip=rng.choice((0, 0, 1, 2)),
        for_s=long.get(kind, 0.0),
        loud=rng.random() < 0.5,
        forgetful=rng.random() < 0.5,
    )

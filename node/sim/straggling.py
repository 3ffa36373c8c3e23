"""A swarm in which one node computes slower for a while: who gets how much of the work, and how long steps take."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from node.sim.faults import Faults
from node.sim.heap import World
from node.sim.invariants import Invariants
from node.sim.machine import require
from node.sim.network import Network
from node.sim.nodes import NodeSpec, SimNode, real_state
from protocol.commands import Note
from protocol.ids import Member, PeerId, members_of
from protocol.manifest import from_mapping

LIMIT_S = 1e5


@dataclass(frozen=True, slots=True)
class Team:
    """Which swarm: `replicas` by stage, `paces` of those that are not as fast as the others (seconds of a forward pass)."""

    replicas: Sequence[int]
    num_microbatches: int = 16
    unit_s: float = 1.0
    paces: Mapping[PeerId, float] = field(default_factory=dict)
    seed: int = 1
    max_in_flight: int = 0


def name_of(stage: int, replica: int) -> PeerId:
    """S1b is the second replica of stage 1."""
    return f"S{stage}{'abcdefgh'[replica]}"


class Straggling:
    """The swarm, and what it has done so far. Latencies are small beside the computations."""

    def __init__(self, team: Team) -> None:
        rng = random.Random(f"straggling {team.seed}")
        stages = len(team.replicas) - 1
        shard = {"digest": "0" * 64, "num_bytes": 1 << 20, "num_tokens": 1 << 19}
        model = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": stages}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
        batch = {"microbatch_samples": 1, "global_samples": team.num_microbatches, "context_tokens": 128}
        self.manifest = from_mapping(
            {
                "name": "straggling",
                "seed": team.seed,
                "model": model | heads,
                "num_block_stages": stages,
                "start_replicas": min(team.replicas),
                "data": {"train": [shard]},
                "batch": batch | {"max_in_flight": team.max_in_flight},
                "optimizer": {"learning_rate": 1e-3},
                "max_steps": 10_000,
                "recovery": {"policy": "none"},
            }
        )
        places = [(stage, replica) for stage, count in enumerate(team.replicas) for replica in range(count)]
        founder = Member(name_of(0, 0), 1)
        self.watch = Invariants(self.manifest, founder)
        self.world = World(self.manifest, rng, Network(rng, Faults().weather), Faults(), self.watch, real_state)
        self.world.works.forgets_stale = True
        self.watch.now = lambda: self.world.now
        for stage, replica in sorted(places, key=lambda place: place[1]):
            name = name_of(stage, replica)
            spec = NodeSpec(Member(name, 1), name, name == founder.peer, stage, team.paces.get(name, team.unit_s))
            self.world.boot(spec, 0.0 if spec.founder else 1.0 + 0.1 * replica)

    def node(self, name: PeerId) -> SimNode:
        """By name."""
        return self.world.nodes[name]

    def steps(self, count: int) -> None:
        """Let so many steps be committed and applied."""
        until = self.watch.step + count
        done = self.world.run(lambda: self.watch.step >= until, LIMIT_S)
        require(done, f"step {self.watch.step + 1} does not come: {self.node('S0a').says}")

    @property
    def seconds(self) -> list[float]:
        """How long each step took, from the first one: commit to commit."""
        times = [0.0, *(at for at, _, _ in self.watch.commits)]
        return [b - a for a, b in pairwise(times)]

    def hands(self, stage: int) -> list[dict[PeerId, int]]:
        """Microbatches of each replica in each committed step."""
        told: dict[int, dict[PeerId, int]] = {}
        for _, _, what in self.world.story:
            if isinstance(what, Note) and what.type == "committed" and what.fields["stage"] == stage:
                shares: Mapping[PeerId, str] = what.fields["contributors"]
                told[int(what.fields["step"])] = {peer: len(members_of(bits)) for peer, bits in shares.items()}
        return [told[step] for step in sorted(told)]

    def told(self, kind: str) -> list[str]:
        """Reasons of the events of this kind, each once."""
        notes = [what for _, _, what in self.world.story if isinstance(what, Note) and what.type == kind]
        return list(dict.fromkeys(str(note.fields["reason"]) for note in notes))

"""What one seed of `node.sim.mixed` stands for: a swarm of any shape and policy, and what will happen to it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from node.sim.mishaps import MISHAPS, Mishap, MishapKind, draw
from node.sim.nodes import NodeSpec
from node.sim.scenario import a_manifest
from protocol.ids import Member
from protocol.manifest import from_mapping

WEATHER = ("duplicate", "reorder", "clock")
KINDS: tuple[str, ...] = (*MISHAPS, *WEATHER)
MIN_NODES, USUAL_NODES, MOST_NODES = 4, 32, 1000
MAX_STAGES = 17
SAVING = 0.1
"""Part of all swarms whose policy is `checkpoint`."""
DOUBLING = 0.1
"""Part of the others whose policy is `redundant`."""
SHADOWING = 0.12
"""Part of those left whose policy is `shadow`: of all seeds, a tenth."""
MAKING = 0.05
"""Part of those left under each of `OTHERS`, the policies that make a lost stage in other ways."""
OTHERS = ("copy", "uniform", "random")
DRIFT = 2e-4
SKEW_S = 3.0


@dataclass(frozen=True, slots=True)
class Options:
    """Which swarm, and what may happen to it. Raises `ValueError` for what there is not."""

    seed: int
    nodes: int = 0
    """How many at the start; 0 = as the seed has it."""
    faults: tuple[str, ...] = KINDS
    """Kinds that may happen."""

    def __post_init__(self) -> None:
        if self.nodes and not MIN_NODES <= self.nodes <= MOST_NODES:
            raise ValueError(f"--nodes {self.nodes}: a simulated swarm has {MIN_NODES} to {MOST_NODES} nodes")
        unknown = [kind for kind in self.faults if kind not in KINDS]
        if unknown:
            raise ValueError(f"--faults {unknown[0]}: there is no such fault; there are {', '.join(KINDS)}, or all, or none")

    @property
    def replay(self) -> str:
        """What a person types to see this again."""
        words = ["regrow", "sim", "--seed", str(self.seed)]
        if self.nodes:
            words += ["--nodes", str(self.nodes)]
        if self.faults != KINDS:
            words += ["--faults", ",".join(self.faults) or "none"]
        return " ".join(words)


def kinds_of(text: str) -> tuple[str, ...]:
    """Kinds as people write them: with commas, or `all`, or `none`; in the order of `KINDS`."""
    words = {word.strip() for word in text.split(",")}
    if words == {"none"}:
        return ()
    return KINDS if words == {"all"} else tuple(sorted(words, key=lambda k: (KINDS.index(k) if k in KINDS else -1, k)))


class Mixture:
    """See the module. `rng` goes on to decide what is decided later."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.rng = rng = random.Random(f"mixed {options.seed} {options.nodes} {','.join(options.faults)}")
        few = round(MIN_NODES * (USUAL_NODES / MIN_NODES) ** rng.random())
        self.num_nodes = options.nodes or few
        self.replicas = self._replicas()
        self.manifest = from_mapping(self._data())
        self.specs = self._nodes()
        self.is_careful = rng.random() < 0.8
        self.directory_parts = rng.random() < 0.5
        self.duplicate = rng.choice((0.01, 0.05, 0.2)) if "duplicate" in options.faults else 0.0
        self.reorder = rng.choice((0.01, 0.05, 0.2)) if "reorder" in options.faults else 0.0
        self.plan = self._plan()
        self._num_late = 0

    def _replicas(self) -> list[int]:
        """One to three of each stage; who is over stands by."""
        rng = self.rng
        stages = min(MAX_STAGES, max(2, round(self.num_nodes / rng.uniform(1.0, 3.0))))
        replicas, left = [1] * stages, self.num_nodes - stages
        for stage in rng.sample(range(stages), stages) * 2:
            if left and rng.random() < 0.8:
                replicas[stage] += 1
                left -= 1
        return replicas

    def _data(self) -> dict[str, Any]:
        rng, num_block_stages = self.rng, len(self.replicas) - 1
        data = a_manifest(rng, num_block_stages, min(self.replicas), 10_000, self.options.seed)
        data["batch"]["global_samples"] = rng.randint(3, 8)
        policies = ("checkfree", "checkfree_plus") if num_block_stages >= 4 else ("checkfree",)
        data["recovery"] = {
            "policy": "none" if rng.random() < 0.1 else rng.choice(policies),
            "embedding_copies": rng.choice((0, 2, 2)),
            "rebuild_grace_s": rng.choice((0.0, 2.0, 6.0)),
            "newcomer_wait_s": rng.choice((0.0, 2.0)),
        }
        saves = random.Random(f"saves {self.options.seed}")  # of its own: other seeds stay what they are
        if saves.random() < SAVING:
            every = saves.choice((1, 2, 5))
            data["recovery"] |= {"policy": "checkpoint", "checkpoint_every": every, "checkpoint_store": "/store"}
        elif random.Random(f"doubles {self.options.seed}").random() < DOUBLING:
            data["recovery"] |= {"policy": "redundant", "embedding_copies": 0}
        else:
            data["recovery"] |= _drawn_later(random.Random(f"keeps {self.options.seed}"))
        data["timing"] |= {
            "fork_after_s": rng.choice((6.0, 20.0)),
            "leave_notice_s": 15.0,
            "lease_s": rng.choice((5.0, 15.0)),
            "join_pause_s": rng.choice((2.0, 10.0)),
        }
        return data

    def _nodes(self) -> list[NodeSpec]:
        rng = self.rng
        wishes = [stage for stage, count in enumerate(self.replicas) for _ in range(count)]
        rng.shuffle(wishes)
        wishes += [-1] * (self.num_nodes - len(wishes))
        members = [Member(f"peer{number:02d}", rng.randint(1, 9)) for number in range(len(wishes))]
        return [self._spec(member, not number, wishes[number]) for number, member in enumerate(members)]

    def _spec(self, member: Member, founder: bool, stage: int) -> NodeSpec:
        rng = self.rng
        spec = NodeSpec(member, member.peer, founder, stage, rng.uniform(0.005, 0.03))
        if "clock" not in self.options.faults:
            return spec
        return replace(spec, drift=rng.uniform(-DRIFT, DRIFT), skew_s=rng.uniform(-SKEW_S, SKEW_S))

    def newcomer(self) -> NodeSpec:
        """Somebody who was not there before, and wishes for nothing."""
        self._num_late += 1
        return self._spec(Member(f"late{self._num_late:02d}", 1), False, -1)

    def _plan(self) -> list[Mishap]:
        kinds: tuple[MishapKind, ...] = tuple(kind for kind in MISHAPS if kind in self.options.faults)
        count = self.rng.randint(3, 8) if kinds else 0
        return [draw(self.rng, kinds, self.manifest.timing.lapse_s) for _ in range(count)]

    def told(self) -> list[str]:
        """The swarm, for people."""
        manifest = self.manifest
        recovery, batch = manifest.recovery, manifest.batch
        return [
            f"seed {self.options.seed}: {self.num_nodes} nodes, {manifest.num_block_stages} block stages, replicas"
            f" {self.replicas}, policy {recovery.policy}, embedding copies {recovery.embedding_copies},"
            f" {batch.num_microbatches} microbatches; duplicates {self.duplicate:.0%}, reordered {self.reorder:.0%}",
            f"{'nobody is taken whom the run needs' if self.is_careful else 'anybody may be taken'};"
            f" to come: {'; '.join(map(str, self.plan)) or 'nothing'}",
        ]


def _drawn_later(rng: random.Random) -> dict[str, Any]:
    """Another policy than was drawn, in a part of the seeds; by a stream of its own: the others stay what they are."""
    share = rng.random()
    if share < SHADOWING:
        every = rng.choice((1, 2, 3, 5, 10))
        more = {"shadow_moments": rng.random() < 0.3} if every > 1 else {}
        return {"policy": "shadow", "shadow_every": every, "embedding_copies": 0} | more
    left = share - SHADOWING
    return {"policy": OTHERS[int(left / MAKING)]} if left < MAKING * len(OTHERS) else {}

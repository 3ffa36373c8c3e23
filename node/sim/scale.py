"""Hours of a large swarm whose nodes are lost at a rate per hour and come back: what it commits, how it regrows, what it says.

    python -m node.sim.scale --nodes 1000 --hours 6 --loss 0.10

Each node's ups and downs are drawn beforehand, so that the full model (`--full`) and the sparse one meet the same losses.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import resource
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from node.sim.faults import Faults, Strike
from node.sim.heap import World
from node.sim.invariants import Invariants
from node.sim.machine import require
from node.sim.network import Network
from node.sim.nodes import NodeSpec, real_state
from node.sim.sparse import SparseInvariants, SparseWorld
from node.sim.traffic import Traffic
from node.transport.names import peer_id
from protocol.commands import Note
from protocol.ids import ATTEMPTS_PER_TERM, Member, PeerId
from protocol.manifest import Manifest, from_mapping
from protocol.messages import Heartbeat
from protocol.sizes import GRADIENT_BYTES_PER_PARAMETER, stage_parameters, state_bytes

MEASURED_STEPS = 3
MOST_WARM_STEPS = 12
START_S = 3600.0
DOWN_S = (60.0, 1200.0)
RATE_BYTES_S = (12e6, 120e6)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is simulated. `loss`: part of the nodes that is lost within an hour."""

    nodes: int = 50
    stages: int = 32
    hours: float = 1.0
    loss: float = 0.10
    seed: int = 1
    microbatches: int = 64
    full: bool = False
    busy_s: float = 60.0
    """Of a step, about, its nodes compute; the rest are transfers and reduces."""
    pinned: bool = False
    """Each node asks for one stage, so that chance does not decide who is where."""


@dataclass(slots=True)
class Lived:
    """What came of it. Bytes are of control messages, sent and received, without heartbeats, in steps without a loss; at a node
    that a stream names once it is told by number later."""

    nodes: int
    hours: float
    loss: float
    full: bool
    step_s: float
    """Of the steps before the first loss."""
    commits: int
    goodput: float
    """Steps committed in the hours, of those that could have been without a loss."""
    losses: int
    returns: int
    attempts: int
    """At the steps that were committed."""
    takeovers: int
    recoveries: dict[str, int]
    exits: dict[str, int]
    """Nodes that ended by themselves, by what they said."""
    ordinary_bytes: int
    """Per ordinary node and step, on average."""
    ordinary_most_bytes: int
    coordinator_bytes: int
    """Per node and step."""
    joining_bytes: int
    """The same in the steps before, in which those join that came too late for the first one."""
    heartbeat_bytes: float
    """Of one, on average."""
    kinds: dict[str, dict[str, int]]
    events: int
    cpu_s: float


class Pairs(Network):
    """Latencies and rates that follow from the names, whoever asks first."""

    def latency(self, one: PeerId, other: PeerId) -> float:
        """See `Network`."""
        if one == other:
            return super().latency(one, other)
        low, high = self._latency_range
        return low + (high - low) * _part(f"{one} {other}" if one < other else f"{other} {one}")

    def rate(self, peer: PeerId) -> float:
        """See `Network`."""
        found = self._rate.get(peer)
        if found is None:
            low, high = self._rate_range
            found = self._rate[peer] = low * (high / low) ** _part(peer)
        return found


def _part(name: str) -> float:
    return zlib.crc32(name.encode()) / 2**32


def manifest_of(wanted: Wanted) -> Manifest:
    """A model of 1.6 billion parameters, one block per stage, a step of some 90 s."""
    shard = {"digest": "0" * 64, "num_bytes": 1 << 20, "num_tokens": 1 << 19}
    model = {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5504, "num_hidden_layers": wanted.stages}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 1024}
    return from_mapping(
        {
            "name": "scale",
            "seed": wanted.seed,
            "model": model | heads,
            "num_block_stages": wanted.stages,
            "start_replicas": max(1, wanted.nodes // (wanted.stages + 1)),
            "data": {"train": [shard]},
            "batch": {"microbatch_samples": 1, "global_samples": wanted.microbatches, "context_tokens": 1024},
            "optimizer": {"learning_rate": 1e-3},
            "max_steps": 100_000,
            "recovery": {"policy": "checkfree_plus"},
            "wire": {"activations": "bf16", "gradients": "bf16"},
        }
    )


def peer_of(index: int) -> PeerId:
    """As a real one."""
    return peer_id(hashlib.sha256(b"%d" % index).digest())


class Scale:
    """See the module."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted, self.manifest = wanted, manifest_of(wanted)
        self.rng = rng = random.Random(f"scale {wanted.seed}")
        replicas = wanted.nodes / self.manifest.num_stages
        self._unit_s = wanted.busy_s / (3 * wanted.stages + 3 * max(2.0, wanted.microbatches / replicas))
        specs = [self._spec(index) for index in range(wanted.nodes)]
        founder, self.faults = specs[0].member, Faults()
        network = Pairs(rng, self.faults.weather, rate_bytes_s=RATE_BYTES_S)
        self.watch: Invariants
        self.world: World
        if wanted.full:
            self.watch = Invariants(self.manifest, founder)
            self.world = World(self.manifest, rng, network, self.faults, self.watch, real_state)
        else:
            self.watch = watch = SparseInvariants(self.manifest, founder)
            self.world = sparse = SparseWorld(self.manifest, rng, network, self.faults, watch)
            sparse.post(0.0, None, sparse.look_at_members)
        self.watch.now = lambda: self.world.now
        self.traffic = Traffic()
        self.world.works.gradient_bytes = GRADIENT_BYTES_PER_PARAMETER // 2 * stage_parameters(self.manifest, 1)
        self.world.works.copies.state_bytes = state_bytes(self.manifest, 1)
        self.counts: Counter[str] = Counter()
        for index, spec in enumerate(specs):
            self.world.boot(spec, 0.0 if not index else rng.uniform(0.5, 1.5))

    def _spec(self, index: int) -> NodeSpec:
        peer = peer_of(index)
        unit_s = self._unit_s * (0.8 + 0.4 * _part(f"speed {peer}"))
        stage = index % self.manifest.num_stages if self.wanted.pinned else -1
        return NodeSpec(Member(peer, 1), peer, index == 0, stage, unit_s)

    def run(self) -> Lived:
        """Live through it. Raises `BrokenError`."""
        began, world, watch, wanted = time.process_time(), self.world, self.watch, self.wanted
        require(world.run(lambda: watch.step >= 1, START_S), f"does not start: {self._situation()}")
        world.traffic = self.traffic
        self._go_on(MEASURED_STEPS)
        while not self._is_settled() and watch.step < MOST_WARM_STEPS:
            self._go_on(1)
        joining = self._bytes(watch.step - 1)[2]
        self.traffic.forget()
        self._go_on(MEASURED_STEPS)
        times = [at for at, _, _ in watch.commits]
        step_s = (times[-1] - times[-MEASURED_STEPS - 1]) / MEASURED_STEPS
        ordinary, most, coordinator, kinds = self._bytes(MEASURED_STEPS)
        world.traffic = None
        self.traffic.end()
        before, seconds = watch.step, 3600.0 * wanted.hours
        self._plan_losses(seconds)
        for hour in range(1, int(wanted.hours) + 1):
            world.run(lambda: False, 3600.0)
            self._tell(hour, watch.step - before, step_s, time.process_time() - began)
        world.run(lambda: False, seconds % 3600.0)
        commits = watch.commits[before:]
        return Lived(
            nodes=wanted.nodes,
            hours=wanted.hours,
            loss=wanted.loss,
            full=wanted.full,
            step_s=round(step_s, 1),
            commits=len(commits),
            goodput=round(len(commits) * step_s / seconds, 3) if seconds else 1.0,
            losses=self.counts["losses"],
            returns=self.counts["returns"],
            attempts=sum((commit.attempt - 1) % ATTEMPTS_PER_TERM + 1 for _, commit, _ in commits),
            takeovers=sum(isinstance(what, Note) and what.type == "took_over" for _, _, what in world.story),
            recoveries=dict(Counter(watch.recovered.values())),
            exits=dict(Counter(node.exit.sentence for node in world.nodes.values() if node.exit)),
            ordinary_bytes=ordinary,
            ordinary_most_bytes=most,
            coordinator_bytes=coordinator,
            joining_bytes=joining,
            heartbeat_bytes=round(self.traffic.mean(Heartbeat.__name__), 1),
            kinds=kinds,
            events=world.num_events,
            cpu_s=round(time.process_time() - began, 1),
        )

    def _tell(self, hour: int, commits: int, step_s: float, cpu_s: float) -> None:
        """For people: how far it is. The first hours of a day are those of a shorter run."""
        goodput, most_mb = commits * step_s / (3600.0 * hour), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        lost = f"{self.counts['losses']} losses, {self.counts['returns']} returns"
        where = f"{commits} commits (goodput {goodput:.3f}), {lost}"
        sys.stderr.write(f"hour {hour}: {where}; {cpu_s:.0f} s of CPU, {most_mb} MiB\n")

    def _go_on(self, steps: int) -> None:
        last = self.watch.step + steps
        require(self.world.run(lambda: self.watch.step >= last, START_S), f"does not train: {self._situation()}")

    def _is_settled(self) -> bool:
        """Everybody computes: nobody joins any more."""
        seats = self.watch.place.seats
        return len({m for _, m in seats}) == self.wanted.nodes and all(s.role == "active" for s in seats.values())

    def _bytes(self, steps: int) -> tuple[int, int, int, dict[str, dict[str, int]]]:
        """Per step, of so many: of an ordinary node on average and at most, of the coordinator per node, and both by kind."""
        first = next(n for n in self.world.alive() if n.spec.founder).peer
        others = [peer for peer in self.world.nodes if peer != first]
        each = [self.traffic.of([peer])["control"] for peer in others]
        ordinary, leader = self.traffic.of(others), self.traffic.of([first])
        kinds = {
            kind: {
                "ordinary": ordinary[kind] // len(others) // steps,
                "coordinator": leader[kind] // len(others) // steps,
            }
            for kind in sorted(ordinary)
        }
        mean = sum(each) // len(others) // steps
        return mean, max(each) // steps, leader["control"] // len(others) // steps, kinds

    # ---- losses ----

    def _plan_losses(self, seconds: float) -> None:
        for peer in sorted(self.world.nodes):
            rng = random.Random(f"losses {self.wanted.seed} {peer}")
            for at, down_s in _ups_and_downs(rng, self.wanted.loss, seconds):
                loud = rng.random() < 0.5
                self.world.post(self.world.now + at, None, self._lose, peer, down_s, loud)

    def _lose(self, peer: PeerId, down_s: float, loud: bool) -> None:
        node = self.world.nodes[peer]
        if not node.dead:
            self.counts["losses"] += 1
            self.world.hit(node, Strike("restart", 0, 0, "forward", for_s=down_s, loud=loud))
            self.world.post(self.world.now + down_s, None, self._returned)

    def _returned(self) -> None:
        self.counts["returns"] += 1

    def _situation(self) -> str:
        says = Counter(node.says for node in self.world.alive())
        return f"step {self.watch.step} at {self.world.now:.2f} s; {says.most_common(5)}"


def _ups_and_downs(rng: random.Random, loss_per_hour: float, seconds: float) -> Iterator[tuple[float, float]]:
    """(when it is lost, for how long) of one node."""
    at = 0.0
    while loss_per_hour:
        at += rng.expovariate(-math.log1p(-loss_per_hour) / 3600.0)
        if at >= seconds:
            return
        down_s = rng.uniform(*DOWN_S)
        yield at, down_s
        at += down_s


def main(arguments: Sequence[str] | None = None) -> int:
    """One JSON line at the end."""
    parser = argparse.ArgumentParser(prog="python -m node.sim.scale", description=__doc__.splitlines()[0])
    given = Wanted()
    parser.add_argument("--nodes", type=int, default=given.nodes, help="how many, at least one per stage")
    parser.add_argument("--stages", type=int, default=given.stages, help="block stages")
    parser.add_argument("--hours", type=float, default=given.hours, help="simulated, after the first steps")
    parser.add_argument("--loss", type=float, default=given.loss, help="part of the nodes lost within an hour")
    parser.add_argument("--seed", type=int, default=given.seed, help="which nodes, links and losses")
    parser.add_argument("--microbatches", type=int, default=given.microbatches, help="per step")
    parser.add_argument(
        "--busy-s", type=float, default=given.busy_s, help="seconds of a step in which its nodes compute, about"
    )
    parser.add_argument("--pinned", action="store_true", help="each node asks for one stage, as its number says")
    parser.add_argument("--full", action="store_true", help="every heartbeat and tick, as in the other simulations")
    wanted = Wanted(**vars(parser.parse_args(arguments)))
    if not wanted.stages < wanted.nodes or not 0 <= wanted.loss < 1:
        parser.error("--nodes must be more than --stages, --loss within 0..1")
    sys.stdout.write(json.dumps(asdict(Scale(wanted).run())) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

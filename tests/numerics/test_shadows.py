"""Policy `shadow` on the real runtime, with torch, on virtual time: holders die right after an update, and what newcomers are
given is, chunk by chunk and to the bit, what the stage was after the step of each chunk."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from node.halves import Dtype, elements_of, filled, num_words, packed, unpacked
from node.sim.donors import MemoryLibrary
from node.sim.loop import run_virtual
from node.sim.swarm import MemorySwarm, Outfit, SimNode, peer_name
from node.stage.executor import TorchExecutor
from protocol.events import Applied, Event, Learned, SeatCreated, ShadowSealed
from protocol.manifest import Manifest
from tests.numerics.harness import RandomTokens, at_once, manifest_of

NUM_BLOCK_STAGES = 4
EVERY = 4
LAST = 14
CHUNK_ELEMENTS = 1500
NEWCOMERS_AT_S = 60.0
SECTIONS = ("weights", "exp_avg", "exp_avg_sq")

# ---- halves ----


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**99), max_value=2.0**99), min_size=1)
)
def test_halves_are_those_of_torch(values: list[float]) -> None:
    array = np.array(values, dtype="<f4")
    data = packed(array.tobytes(), "bf16")
    assert len(data) == 4 * num_words(len(values), "bf16")
    wanted = torch.from_numpy(array).to(torch.bfloat16).float().numpy()
    assert np.array_equal(unpacked(data, len(values), "bf16"), wanted)
    assert np.array_equal(unpacked(packed(array.tobytes(), "fp32"), len(values), "fp32"), array)


@given(st.data())
def test_part_of_what_is_kept_is_cut_out_in_its_own_words(data: st.DataObject) -> None:
    dtype: Dtype = data.draw(st.sampled_from(["bf16", "fp32"]))
    count, vectors = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([1, 3]))
    first = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(first + 1, count))
    arrays = [np.arange(count, dtype="<f4") + 100 * number for number in range(vectors)]
    kept = b"".join(packed(array.tobytes(), dtype) for array in arrays)
    for array, part in zip(arrays, elements_of(kept, count, vectors, dtype, first, end), strict=True):
        assert np.array_equal(unpacked(filled(part), end - first, dtype), as_sent(array, dtype)[first:end])


# ---- a swarm ----


@dataclass
class Story:
    """What stages were after each step, what was sealed of the lost ones, and what their newcomers were given."""

    lost: tuple[int, ...]
    swarm: Any = None
    after: dict[tuple[int, int], list[np.ndarray]] = field(default_factory=dict)
    chunks: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    """(first element, count, step), by stage."""
    made: dict[int, tuple[Learned, list[np.ndarray]]] = field(default_factory=dict)
    brought: Counter[int] = field(default_factory=Counter)
    """Bytes of each lost stage that newcomers were given."""

    def flat(self, node: SimNode, stage: int) -> list[np.ndarray]:
        count = sum(int(np.prod(shape)) for _, shape in node.executor.parameters(stage))
        return [np.frombuffer(at_once(node.executor.export(stage, s, 0, count)), dtype="<f4").copy() for s in SECTIONS]

    def watch(self, node: SimNode, event: Event) -> None:
        if isinstance(event, Applied) and event.step <= LAST:
            self.after[event.stage, event.step] = self.flat(node, event.stage)
            if (event.step, event.stage in self.lost) == (LAST, True) and not node.killed:
                self.swarm.kill(node)
        elif isinstance(event, ShadowSealed) and event.shadow:
            ledger = self.swarm.runtime_of(node.state.config.member.peer).shadowing.kept[event.stage].ledger
            self.chunks[event.stage] = [(c.first, c.count, c.step) for c in ledger.chunks]
        elif isinstance(event, Learned) and event.stage in node.state.chain.rebuilds:
            self.made[event.stage] = event, self.flat(node, event.stage)


@dataclass(slots=True)
class Counting(MemoryLibrary):
    """Counts for a story what newcomers are given."""

    story: Story | None = None

    async def travel(self, stage: int, num_bytes: int, giver: str, taker: str) -> None:
        assert self.story
        if taker >= peer_name(NUM_BLOCK_STAGES + 1) and stage in self.story.lost:
            self.story.brought[stage] += num_bytes
        await MemoryLibrary.travel(self, stage, num_bytes, giver, taker)


def lose(manifest: Manifest, *lost: int) -> Story:
    """A run whose holders of these stages die after step `LAST`, and go on at newcomers to the end."""
    tokens, story = RandomTokens(manifest), Story(lost)
    wishes = [*range(manifest.num_stages), *[-1] * len(lost)]
    comes = {manifest.num_stages + n: NEWCOMERS_AT_S for n in range(len(lost))}
    story.swarm = MemorySwarm(
        manifest,
        wishes,
        lambda _: TorchExecutor(manifest, tokens, inline=True),
        joins_at=comes,
        watch=story.watch,
        outfit=Outfit(piece=lambda *_: CHUNK_ELEMENTS, library=Counting(Random(0), story=story)),
    )
    nodes = run_virtual(story.swarm.run())
    assert [n.exit.code for n in nodes if n.exit] == [0] * manifest.num_stages
    assert max(n.state.chain.step for n in nodes) == manifest.last_step
    return story


def a_run(**more: Any) -> Manifest:
    rules = {
        "policy": "shadow",
        "shadow_every": EVERY,
        "rebuild_grace_s": 0.0,
        "newcomer_wait_s": 600.0,
        "shadow_link_share": 0.08,
    }
    return manifest_of(NUM_BLOCK_STAGES, max_steps=LAST + 3, recovery=rules | more)


def as_sent(flat: np.ndarray, dtype: Dtype) -> np.ndarray:
    return torch.from_numpy(flat).to(torch.bfloat16).float().numpy() if dtype == "bf16" else flat


@pytest.mark.parametrize(
    ("lost", "dtype", "moments"),
    [
        ((2,), "bf16", False),
        ((0,), "bf16", False),
        ((1, 2), "bf16", False),
        ((4,), "fp32", True),
    ],
    ids=["interior", "stage 0", "neighbours", "the last, with moments"],
)
def test_what_is_restored_is_what_was_sent_chunk_by_chunk(lost: tuple[int, ...], dtype: Dtype, moments: bool) -> None:
    story = lose(a_run(shadow_dtype=dtype, shadow_moments=moments), *lost)
    assert sorted(story.made) == sorted(lost)
    for stage in lost:
        learned, found = story.made[stage]
        steps = {step for _, _, step in story.chunks[stage]}
        assert LAST - 2 * EVERY <= min(steps) <= max(steps) <= min(LAST, min(steps) + EVERY)
        for first, count, step in story.chunks[stage]:
            of = slice(first, first + count)
            for section in range(3 if moments else 1):
                wanted = as_sent(story.after[stage, step][section][of], dtype)
                assert np.array_equal(found[section][of], wanted), f"{SECTIONS[section]} of {first}+{count} at step {step}"
        if not moments:
            assert not found[1].any() and not found[2].any()
        assert learned.optimizer_age == (min(steps) if moments else 0)
        assert learned.lr_factor == 1.0, "untouched"
        words = sum(num_words(count, dtype) for _, count, _ in story.chunks[stage])
        assert story.brought[stage] == 4 * words * (3 if moments else 1), "it goes over the wire as it is kept"
        assert 0 <= story.brought[stage] - learned.num_bytes <= 2
    assert any(len({step for _, _, step in chunks}) > 1 for chunks in story.chunks.values()), "nothing was mixed"
    [rebuild] = [line for line in story.swarm.nodes[3].lines("rebuild") if line["stage"] == lost[0]]
    told = rebuild["shadow"]
    steps = {step for _, _, step in story.chunks[lost[0]]}
    assert (told["oldest_step"], told["newest_step"], told["digest"]) == (min(steps), max(steps), story.made[lost[0]][0].digest)


def test_where_the_share_is_too_small_the_stage_is_made_of_its_neighbours_and_that_is_said() -> None:
    """Chunks would be too many steps apart: they are not used."""
    story = lose(a_run(shadow_link_share=0.02), 2)
    assert not story.chunks and sorted(story.made) == [2]
    [sealed] = [line for node in story.swarm.nodes for line in node.lines("shadow_sealed")]
    assert (sealed["stage"], sealed["whole"]) == (2, False)
    [recovered] = [line for node in story.swarm.nodes for line in node.lines("recovered")]
    assert recovered["rung"] == "recovery"


def test_what_is_kept_comes_within_its_share_of_the_link_however_much_is_due() -> None:
    """On links that bring less than is due: bytes over virtual time, at each keeper, while training goes on."""
    manifest, tokens, rate = a_run(shadow_every=2, shadow_link_share=0.1), RandomTokens(a_run()), 20e3
    seen: dict[str, tuple[float, float]] = {}
    """By keeper: when it began, when it was seen last."""
    swarm: Any = None

    def watch(node: SimNode, event: Event) -> None:
        now, me = asyncio.get_running_loop().time(), node.state.config.member.peer
        if isinstance(event, SeatCreated) or me in seen:
            seen[me] = seen.get(me, (now, now))[0], now

    swarm = MemorySwarm(
        manifest,
        list(range(manifest.num_stages)),
        lambda _: TorchExecutor(manifest, tokens, inline=True),
        copy_rate=rate,
        watch=watch,
        outfit=Outfit(piece=lambda *_: CHUNK_ELEMENTS),
    )
    run_virtual(swarm.run())
    chunk_bytes = 2 * CHUNK_ELEMENTS
    for peer, (began, ended) in seen.items():
        moved, carries = swarm.runtime_of(peer).shadowing.share.num_bytes, rate * (ended - began)
        print(f"{peer}: {moved} of {carries:.0f} bytes")
        assert moved <= 0.1 * carries + 2 * chunk_bytes
        assert moved >= 0.05 * carries, "it would take what it may"

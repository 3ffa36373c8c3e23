"""What a seat takes, and which stage a newcomer would get. Parameters are held against torch in tests/numerics."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.forecast import Machine, forecast, likely_stage
from protocol.manifest import Manifest, from_mapping
from protocol.presets import PRESETS, preset
from protocol.sizes import (
    PROCESS_BYTES,
    Traffic,
    fits,
    human_bytes,
    in_flight,
    join_bytes,
    model_parameters,
    need_bytes,
    passive_bytes,
    payload_bytes,
    stage_parameters,
    state_bytes,
    step_traffic,
)

SHARD = {"digest": "0" * 64, "num_bytes": 2_000_000, "num_tokens": 1_000_000}


def manifest_of(name: str, **changes: Any) -> Manifest:
    data = preset(name) | {"data": {"train": [SHARD], "validation": [SHARD]}}
    for dotted, value in changes.items():
        section, _, key = dotted.partition("__")
        data.setdefault(section, {})[key] = value
    return from_mapping(data)


def test_the_papers_models() -> None:
    assert [model_parameters(manifest_of(name)) for name in ("124m", "500m", "1.5b")] == [
        83_112_448,
        468_239_360,
        1_741_785_088,
    ]
    m = manifest_of("500m")
    assert state_bytes(m, 3) == 12 * stage_parameters(m, 3) == 12 * 67_117_056


@pytest.mark.parametrize("name", PRESETS)
def test_memory_grows_with_what_a_seat_has_to_do(name: str) -> None:
    m = manifest_of(name)
    for stage in (0, 1, m.num_block_stages):
        alone, two = need_bytes(m, stage), need_bytes(m, stage, 2)
        assert alone > PROCESS_BYTES + 16 * stage_parameters(m, stage)
        if stage:
            more = two - alone - (in_flight(m, 2) - in_flight(m)) * _per_microbatch(m)
            sent_once = 2 * payload_bytes(m) * -(-m.batch.num_microbatches // 2)
            assert more == 8 * stage_parameters(m, stage) + sent_once, "a second gradient, and what may be sent once more"
        assert fits(m, stage, 0) and fits(m, stage, alone) and not fits(m, stage, alone - 1)
    assert passive_bytes(m) == 20 * stage_parameters(m, 0)


def _per_microbatch(m: Manifest) -> int:
    more = manifest_of(m.name.replace("1-5b", "1.5b"), batch__max_in_flight=2)
    one = manifest_of(m.name.replace("1-5b", "1.5b"), batch__max_in_flight=1)
    return need_bytes(more, 1) - need_bytes(one, 1)


def test_stage_0_keeps_a_second_gradient_where_the_run_has_copies_of_it() -> None:
    without = manifest_of("tiny", recovery__embedding_copies=0)
    assert need_bytes(manifest_of("tiny"), 0) - need_bytes(without, 0) == 8 * stage_parameters(without, 0)


def test_recomputation_keeps_less() -> None:
    kept = manifest_of("500m", compute__recompute_activations=False)
    assert need_bytes(manifest_of("500m"), 1) < 0.5 * need_bytes(kept, 1)


def test_bytes_of_a_step() -> None:
    m = manifest_of("tiny", recovery__embedding_copies=0)
    pipe = 2 * m.batch.num_microbatches * payload_bytes(m)
    assert payload_bytes(m) == 4 * 2 * 128 * 96
    assert step_traffic(m, 2) == Traffic(pipe, pipe)
    gradient = 4 * stage_parameters(m, 2)
    assert step_traffic(m, 2, 2) == Traffic(pipe // 2 + gradient, pipe // 2 + gradient)
    copied = manifest_of("tiny", recovery__embedding_copies=2)
    assert step_traffic(copied, 0) == Traffic(pipe, pipe + 2 * 4 * stage_parameters(m, 0))
    assert payload_bytes(manifest_of("500m")) == 2 * 8 * 1024 * 1024


def test_bytes_of_joining() -> None:
    m = manifest_of("tiny")
    assert join_bytes(m, 1) == state_bytes(m, 1)
    assert join_bytes(m, 0) == state_bytes(m, 0) + 4_000_000
    assert join_bytes(m, 0, has_tokens=True) == state_bytes(m, 0)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (9_960_000, "10 MB"),
        (805e6, "805 MB"),
        (999_600_000, "1.0 GB"),
        (3.14e9, "3.1 GB"),
        (5e15, "5000 TB"),
    ],
)
def test_sizes_for_people(num_bytes: float, text: str) -> None:
    assert human_bytes(num_bytes) == text


ALL = dict.fromkeys(range(5), 1)


@pytest.mark.parametrize(
    ("held", "wished", "stage", "why"),
    [
        ({}, -1, 0, "nobody holds it"),
        (ALL | {3: 0}, -1, 3, "nobody holds it"),
        (ALL | {0: 2, 1: 2}, -1, 2, "with 1 replica it is likely the slowest"),
        (ALL, -1, 1, "with 1 replica it is likely the slowest"),
        ({0: 1, 1: 2, 2: 2, 3: 2, 4: 2}, -1, 0, "with 1 replica it is likely the slowest"),
        ({0: 2, 1: 3, 2: 3, 3: 2, 4: 3}, -1, 3, "with 2 replicas it is likely the slowest"),
        (ALL, 4, 4, "it was asked for"),
    ],
)
def test_the_stage_that_a_newcomer_gets(held: dict[int, int], wished: int, stage: int, why: str) -> None:
    found = likely_stage(manifest_of("tiny"), held, 0, wished)
    assert (found.stage, found.why) == (stage, why)


def test_only_stages_that_fit() -> None:
    m = manifest_of("500m")
    held = dict.fromkeys(range(7), 1)
    room = need_bytes(m, 0, 2)
    assert room < need_bytes(m, 1, 2)
    found = likely_stage(m, held | {0: 5}, need_bytes(m, 0, 6))
    assert (found.stage, found.why) == (0, "with 5 replicas it is likely the slowest of those that fit into the memory here")
    assert likely_stage(m, held, room - 1).stage == -1
    said = likely_stage(m, held, 10**9).why
    assert said.startswith("even the smallest stage, 0, needs ") and said.endswith(" and the node may use 1.0 GB")
    assert likely_stage(m, held, 10**9, wished=3).why.startswith("stage 3 needs ")


def test_a_forecast() -> None:
    m = manifest_of("tiny")
    told = forecast(m, ALL, Machine(0, 0, has_tokens=False), step_s=2.0)
    assert (told.choice.stage, told.replicas, told.disk_bytes) == (1, 2, 0)
    assert told.step == step_traffic(m, 1, 2)
    assert forecast(m, ALL, Machine(0, 0, has_tokens=False), wished=0).disk_bytes == 4_000_000
    assert told.hour.bytes_in == 1800 * told.step.bytes_in
    assert forecast(m, ALL, Machine(0, 0, has_tokens=True)).hour == Traffic(0, 0)
    assert forecast(m, {}, Machine(0, 0, has_tokens=True), wished=1).replicas == 1, "nobody else holds it"
    small = forecast(m, ALL, Machine(1 << 20, 0, has_tokens=True))
    assert small.choice.stage == -1
    assert small.need_bytes > 1 << 20

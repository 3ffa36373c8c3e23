"""Policy `shadow`: what its manifest may say, and what it takes of a machine and of a link."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.chain import Chain
from protocol.copies import Copies, first_copies, is_copy
from protocol.records import Roster
from protocol.shadow_ledger import refresh_steps
from protocol.shadow_place import distance
from protocol.sizes import (
    PROCESS_BYTES,
    copied_stage,
    need_bytes,
    seat_bytes,
    shadow_bytes,
    stage_parameters,
    step_traffic,
)
from tests.tools.core import LEAD, a_manifest, holders
from tests.unit.test_shadow import EVERY, Keeper, a_run

# ---- the manifest ----


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ({"policy": "shadow"}, "policy shadow needs shadow_every: a number of steps; 1: an exact copy"),
        ({"policy": "shadow", "shadow_every": 1, "shadow_dtype": "fp32"}, "shadow_dtype is not for shadow_every 1"),
        ({"policy": "shadow", "shadow_every": 1, "shadow_link_share": 0.5}, "shadow_link_share is not for shadow_every 1"),
        ({"policy": "shadow", "shadow_every": 1, "embedding_copies": 2}, "embedding_copies is not for shadow_every 1"),
        ({"policy": "shadow", "shadow_every": 1001}, "less than or equal to 1000"),
        ({"policy": "shadow", "shadow_every": 10, "shadow_link_share": 0.0}, "greater than 0"),
        ({"policy": "shadow", "shadow_every": 10, "shadow_dtype": "f16"}, "'bf16' or 'fp32'"),
        ({"policy": "checkfree", "shadow_every": 10}, "shadow_every is for policy shadow, not checkfree; leave it out"),
        ({"policy": "checkfree", "shadow_moments": True}, "shadow_moments is for policy shadow, not checkfree"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(rules: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        a_manifest(recovery=rules)


def test_without_a_word_there_are_no_embedding_copies_and_the_order_is_not_swapped() -> None:
    manifest = a_run()
    assert manifest.recovery.embedding_copies == 0 and not manifest.swapped
    assert manifest.recovery.rebuilds and manifest.keeps_shadows


# ---- what it takes ----


@pytest.mark.parametrize(("more", "factor"), [({}, 2), ({"shadow_dtype": "fp32"}, 4), ({"shadow_moments": True}, 6)])
def test_memory_and_traffic_count_it(more: dict[str, Any], factor: int) -> None:
    manifest, plain = a_run(**more), a_manifest(5, policy="checkfree").model_copy(update={"max_steps": 1000})
    plain = plain.model_copy(update={"recovery": plain.recovery.model_copy(update={"embedding_copies": 0})})
    for stage in range(6):
        kept = (stage + 3) % 6
        assert shadow_bytes(manifest, kept) == factor * stage_parameters(manifest, kept)
        assert need_bytes(manifest, stage) - need_bytes(plain, stage) == shadow_bytes(manifest, kept)
        traffic, without = step_traffic(manifest, stage), step_traffic(plain, stage)
        assert traffic.bytes_in - without.bytes_in == -(-shadow_bytes(manifest, kept) // refresh_steps(EVERY))
        assert traffic.bytes_out - without.bytes_out == -(-shadow_bytes(manifest, stage) // refresh_steps(EVERY))
    assert shadow_bytes(plain, 1) == 0


@pytest.mark.parametrize("num_block_stages", range(1, 9))
def test_an_exact_shadow_is_a_passive_replica_half_way_round(num_block_stages: int) -> None:
    manifest, num_stages = a_run(num_block_stages, shadow_every=1), num_block_stages + 1
    rows = [[s.member for s in holders(manifest) if s.stage == stage] for stage in range(num_stages)]
    copies = first_copies(manifest, rows)
    assert [s.role for s in copies] == ["passive"] * num_stages
    for copy in copies:
        [host] = [stage for stage, row in enumerate(rows) if copy.member in row]
        assert distance(host, copy.stage, num_stages) == num_stages // 2
        assert copied_stage(manifest, host) == copy.stage
    chain = Chain(manifest, LEAD)
    chain.append(Roster(chain.head, 0, (*holders(manifest), *copies), (), (LEAD,)), ())
    assert Copies(manifest, chain).missing(()) == [] and all(is_copy(s, chain) for s in copies)


def test_an_exact_shadow_costs_a_seat_and_the_sums_of_its_stage_and_nothing_is_fetched() -> None:
    manifest = a_run(shadow_every=1)
    plain = a_manifest(5, policy="checkfree").model_copy(update={"max_steps": 1000})
    plain = plain.model_copy(update={"recovery": plain.recovery.model_copy(update={"embedding_copies": 0})})
    assert manifest.has_exact_shadows and not manifest.keeps_shadows and not manifest.redundant
    for stage in range(6):
        kept = (stage + 3) % 6
        assert shadow_bytes(manifest, stage) == 0
        assert need_bytes(manifest, stage) == PROCESS_BYTES + seat_bytes(manifest, stage) + seat_bytes(manifest, kept)
        traffic, without = step_traffic(manifest, stage), step_traffic(plain, stage)
        assert traffic.bytes_in - without.bytes_in == 4 * stage_parameters(manifest, kept)
        assert traffic.bytes_out - without.bytes_out == 4 * stage_parameters(manifest, stage)
    keeper = Keeper(manifest=manifest)
    assert keeper.look() == []

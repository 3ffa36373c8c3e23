"""What a seat takes of a machine, from the manifest alone: parameters, memory, bytes on the wire.

Parameters are exact. Memory is an estimate of the peak: state and gradients are exact, activations are counted tensor by tensor
for what a backward pass retains, and the rest is room for buffers whose number is bounded elsewhere. It leaves out what another
program takes, the reduced gradients that are kept while somebody learns the stage (8 bytes per parameter for a while), and what
a neighbour averages of a lost stage (2 bytes per parameter of that stage until it is back, where each stage has one holder).

Legend: D hidden size, F intermediate size, V vocabulary, W width of all key/value heads, N rows (tokens) of a microbatch.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.manifest import Manifest
from protocol.shadow_ledger import refresh_steps

STATE_BYTES_PER_PARAMETER = 12
"""Weights and two moments in f32: what a seat is at rest, and what a newcomer downloads."""
GRADIENT_BYTES_PER_PARAMETER = 4
SHARED_BYTES_PER_PARAMETER = 8
"""Where the sum over several holders is kept apart from the local gradient (4), and pieces of it are on their way (4)."""
PROCESS_BYTES = 512 << 20
"""Python and its libraries, the directory's daemon; on a GPU its context."""
HEAD_ROWS = 512
"""Rows whose logits exist at the same time (`node.stage.model`)."""
F32 = 4
WIRE_BYTES = {"f32": 4, "bf16": 2}
SHADOW_BYTES = {"fp32": 4, "bf16": 2}
TOKEN_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a seat receives and sends in one step. Control traffic and the framing are left out (under 1 %)."""

    bytes_in: int
    bytes_out: int


def stage_parameters(manifest: Manifest, stage: int) -> int:
    """Number of parameters of a stage. 0: 2 V D + D (tied: V D + D). Else, per block: 2 D D + 2 D W + 3 D F + 2 D."""
    m = manifest.model
    if stage == 0:
        return (1 if m.tie_word_embeddings else 2) * m.vocab_size * m.hidden_size + m.hidden_size
    width = m.num_key_value_heads * m.head_dim
    block = m.hidden_size * (2 * m.hidden_size + 2 * width + 3 * m.intermediate_size + 2)
    return len(manifest.blocks_of(stage)) * block


def working_parameters(manifest: Manifest, stage: int) -> int:
    """Parameters that each token is multiplied with: all of a block stage, the head of stage 0. Time goes with them."""
    return stage_parameters(manifest, stage) if stage else manifest.model.vocab_size * manifest.model.hidden_size


def model_parameters(manifest: Manifest) -> int:
    """Number of parameters of the whole model."""
    return sum(stage_parameters(manifest, stage) for stage in range(manifest.num_stages))


def state_bytes(manifest: Manifest, stage: int) -> int:
    """A stage's whole state at rest."""
    return STATE_BYTES_PER_PARAMETER * stage_parameters(manifest, stage)


# ---- memory ----


def need_bytes(manifest: Manifest, stage: int, replicas: int = 1) -> int:
    """Memory that a node needs to train one seat of this stage while the stage has so many active replicas. Where each stage is
    copied (policies redundant and shadow) twice that: its copy of another stage is one that it may have to train at once. Else
    under policy shadow with what is kept there of another stage, where each stage has one holder."""
    twice = seat_bytes(manifest, copied_stage(manifest, stage), replicas) if manifest.copies_stages else 0
    kept = shadow_bytes(manifest, _kept_at(manifest, stage))
    return PROCESS_BYTES + seat_bytes(manifest, stage, replicas) + twice + kept


def shadow_bytes(manifest: Manifest, stage: int) -> int:
    """What is kept of the stage elsewhere, and sent for it each time; 0 where nothing is."""
    rules = manifest.recovery
    if not manifest.keeps_shadows:
        return 0
    return (3 if rules.shadow_moments else 1) * SHADOW_BYTES[rules.shadow_dtype] * stage_parameters(manifest, stage)


def _kept_at(manifest: Manifest, stage: int) -> int:
    """The stage whose shadow falls to the holder of this one (`protocol.shadow_place`)."""
    return (stage - manifest.num_stages // 2) % manifest.num_stages


def fits(manifest: Manifest, stage: int, memory_bytes: int, replicas: int = 1) -> bool:
    """May a node that has so much memory hold the stage? 0 = it is not known: yes."""
    return not memory_bytes or memory_bytes >= need_bytes(manifest, stage, replicas)


def seat_bytes(manifest: Manifest, stage: int, replicas: int = 1) -> int:
    """What one active seat adds to a node: state, gradients, activations."""
    shared = _sharers(manifest, stage, replicas) > 1
    per_parameter = STATE_BYTES_PER_PARAMETER + GRADIENT_BYTES_PER_PARAMETER + (SHARED_BYTES_PER_PARAMETER if shared else 0)
    return per_parameter * stage_parameters(manifest, stage) + activation_bytes(manifest, stage, replicas)


def passive_bytes(manifest: Manifest, stage: int = 0) -> int:
    """What a passive replica of the stage adds to a node, such as an embedding copy."""
    return (STATE_BYTES_PER_PARAMETER + SHARED_BYTES_PER_PARAMETER) * stage_parameters(manifest, stage)


def activation_bytes(manifest: Manifest, stage: int, replicas: int = 1) -> int:
    """Most that microbatches in flight take at one seat: what their backward passes retain, their payloads, and the work on one
    of them. All of them may wait at the same seat; the replicas of a stage share them, as stage 0's admit them. Where
    stages have several replicas, what is sent to one of them is kept until the step is over (`protocol.attempt`)."""
    rows, hidden = manifest.batch.tokens_per_microbatch, manifest.model.hidden_size
    payloads = 2 * payload_bytes(manifest)
    if stage == 0:
        retained = TOKEN_ID_BYTES * rows
        work = F32 * (3 * min(HEAD_ROWS, rows) * manifest.model.vocab_size + 3 * rows * hidden)
    else:
        retained = F32 * rows * _retained_width(manifest, stage)
        work = F32 * rows * _working_width(manifest)
    kept = -(-manifest.batch.num_microbatches // replicas) * payloads if replicas > 1 else 0
    return in_flight(manifest, replicas) * (retained + payloads) + kept + work


def _retained_width(manifest: Manifest, stage: int) -> int:
    """Floats per row that a forward pass keeps: each block's input where it is recomputed, else `_block_width` of each."""
    hidden, blocks = manifest.model.hidden_size, len(manifest.blocks_of(stage))
    return hidden + blocks * (hidden if manifest.compute.recompute_activations else _block_width(manifest))


def _block_width(manifest: Manifest) -> int:
    """9 D + 2 W + 4 F: input, two norms with two vectors each, q, k, v, attention's output and its copy, the residual, and of
    the MLP gate, up, silu and product. Within 4 % of what autograd saves."""
    m = manifest.model
    return 9 * m.hidden_size + 2 * m.num_key_value_heads * m.head_dim + 4 * m.intermediate_size


def _working_width(manifest: Manifest) -> int:
    """Gradients that exist at once in a backward pass; recomputation makes one block's activations again first."""
    m = manifest.model
    again = _block_width(manifest) if manifest.compute.recompute_activations else 0
    return again + 4 * m.hidden_size + 3 * m.intermediate_size


def in_flight(manifest: Manifest, replicas: int = 1) -> int:
    """Most microbatches that one replica of a stage has in hand at once."""
    return min(manifest.max_in_flight, -(-manifest.batch.num_microbatches // replicas))


def payload_bytes(manifest: Manifest) -> int:
    """One activation on the wire."""
    size = manifest.batch.tokens_per_microbatch * manifest.model.hidden_size
    return WIRE_BYTES[manifest.wire.activations] * size


def _sharers(manifest: Manifest, stage: int, replicas: int) -> int:
    """Who takes part in the stage's reduce: active replicas, and copies."""
    return replicas + num_copies(manifest, stage, replicas)


def num_copies(manifest: Manifest, stage: int = 0, replicas: int = 1) -> int:
    """Copies of the stage that the run keeps, where it has nodes for them: of the embedding; under policy redundant of each
    stage as many as the stage before has replicas, here taken for as many as the stage's own; one that is an exact shadow."""
    if manifest.copies_stages:
        return 1 if manifest.has_exact_shadows else replicas
    if stage or manifest.recovery.policy == "none":
        return 0
    return min(manifest.recovery.embedding_copies, manifest.num_block_stages)


def next_stage(manifest: Manifest, stage: int) -> int:
    """The stage that comes after this one on a microbatch's way (not in the swapped order)."""
    return (stage + 1) % manifest.num_stages


def copied_stage(manifest: Manifest, stage: int) -> int:
    """Of which the node that computes this stage holds a copy, where each stage has one."""
    return next_stage(manifest, stage) if manifest.redundant else _kept_at(manifest, stage)


# ---- the wire ----


def step_traffic(manifest: Manifest, stage: int, replicas: int = 1) -> Traffic:
    """Bytes per step of one of `replicas` active seats that share the microbatches equally.

    Each microbatch passes twice, as an activation and as a gradient, in and out (at stage 0: out as an embedding, in at the
    head, and the gradients the other way). A reduce over r replicas sends (r - 1)/r of the gradient as parts and as many sums;
    each copy is sent the sums as well, and the node those of the stage of its own copy. A shadow that is not exact is sent anew
    every few steps, by one replica.
    """
    pipe = 2 * -(-manifest.batch.num_microbatches // replicas) * payload_bytes(manifest)
    gradient = WIRE_BYTES[manifest.wire.gradients] * stage_parameters(manifest, stage)
    share, others = gradient // replicas, replicas - 1
    passive = _sharers(manifest, stage, replicas) - replicas
    copied_parameters = stage_parameters(manifest, copied_stage(manifest, stage)) if manifest.copies_stages else 0
    copied = WIRE_BYTES[manifest.wire.gradients] * copied_parameters
    kept, sent = (_shadow_per_step(manifest, s) for s in (_kept_at(manifest, stage), stage))
    return Traffic(pipe + 2 * others * share + copied + kept, pipe + (2 * others + passive) * share + sent)


def _shadow_per_step(manifest: Manifest, stage: int) -> int:
    return -(-shadow_bytes(manifest, stage) // refresh_steps(manifest.recovery.shadow_every))


def join_bytes(manifest: Manifest, stage: int, has_tokens: bool = False) -> int:
    """What a newcomer downloads once training has begun: the stage's state (and that of the one that it copies), and for
    stage 0 the token shards."""
    copied = state_bytes(manifest, copied_stage(manifest, stage)) if manifest.copies_stages else 0
    return state_bytes(manifest, stage) + copied + data_bytes(manifest, stage, has_tokens)


def data_bytes(manifest: Manifest, stage: int, has_tokens: bool = False) -> int:
    """Token shards that whoever computes the stage has to have: for stage 0, or its copy where each stage has one."""
    is_read = stage == 0 or (manifest.copies_stages and copied_stage(manifest, stage) == 0)
    return token_bytes(manifest) if is_read and not has_tokens else 0


def token_bytes(manifest: Manifest) -> int:
    """All token shards."""
    return sum(shard.num_bytes for shard in (*manifest.data.train, *manifest.data.validation))


# ---- for people ----


def human_bytes(num_bytes: float) -> str:
    """`3.1 GB`, `805 MB`: powers of ten, two digits at least."""
    size, unit = float(num_bytes), "bytes"
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "bytes" or size >= 9.95 else f"{size:.1f} {unit}"

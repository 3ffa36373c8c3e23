"""The manifest: the frozen description of a run that every peer agrees on.

Every field has a sentence and, where it measures something, a unit in its name. Validation happens once, here; the rest of
the code trusts a `Manifest`. Errors are `pydantic.ValidationError` (a `ValueError`) whose messages name the field.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from protocol.version import PROTOCOL_VERSION

MAX_BLOCK_STAGES = 64
MAX_MICROBATCHES = 4096
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Admission = Literal["open", "invited"]
Policy = Literal["none", "checkfree", "checkfree_plus", "copy", "uniform", "random", "checkpoint", "redundant", "shadow"]
LEAN: tuple[Policy, ...] = ("checkfree", "copy", "uniform", "random", "checkpoint")
"""Policies that send not a byte more than `none` while nothing is lost: without a word they keep no embedding copies."""
MAX_SHADOW_STEPS = 1000


class Section(BaseModel):
    """Base of all manifest sections: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class RopeScaling(Section):
    """LLaMA-3 or linear scaling of the rotary frequencies (same keys as in Hugging Face configs)."""

    rope_type: Literal["linear", "llama3"] = Field(description="Kind of scaling.")
    factor: float = Field(gt=0, description="How many times the context is stretched.")
    low_freq_factor: float = Field(1.0, gt=0, description="llama3 only: wavelengths above old_context/this are scaled fully.")
    high_freq_factor: float = Field(4.0, gt=0, description="llama3 only: wavelengths below old_context/this stay as they are.")
    original_max_position_embeddings: int = Field(8192, gt=0, description="llama3 only: context before stretching, in tokens.")


class ModelConfig(Section):
    """A LLaMA-family decoder; field names are those of Hugging Face's LlamaConfig."""

    vocab_size: int = Field(gt=1, le=1 << 20, description="Number of token ids.")
    hidden_size: int = Field(gt=0, le=1 << 16, description="Width of the residual stream.")
    intermediate_size: int = Field(gt=0, le=1 << 18, description="Width of the SwiGLU hidden layer.")
    num_hidden_layers: int = Field(gt=0, le=1024, description="Number of transformer blocks.")
    num_attention_heads: int = Field(gt=0, le=1024, description="Number of query heads.")
    num_key_value_heads: int = Field(gt=0, le=1024, description="Number of key/value heads (grouped-query attention).")
    max_position_embeddings: int = Field(gt=0, le=1 << 20, description="Context length, in tokens.")
    rms_norm_eps: float = Field(1e-5, gt=0, description="Epsilon of RMSNorm.")
    rope_theta: float = Field(10000.0, gt=0, description="Base of the rotary frequencies.")
    rope_scaling: RopeScaling | None = Field(None, description="Scaling of the rotary frequencies, or none.")
    tie_word_embeddings: bool = Field(False, description="LM head shares the token embedding's weight.")
    initializer_range: float = Field(0.02, gt=0, description="Standard deviation of the initial weights.")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @model_validator(mode="after")
    def _shapes(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head width {self.head_dim} (hidden_size / num_attention_heads) must be even for RoPE")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        return self


class FileRef(Section):
    """A file named by what is in it, with places where it may be found."""

    digest: Digest = Field(description="blake3 of the file's bytes, hex.")
    num_bytes: int = Field(gt=0, description="Size of the file in bytes.")
    sources: tuple[str, ...] = Field((), description="Paths or fsspec URLs tried in order before asking peers.")


class TokenShard(FileRef):
    """One file of little-endian uint16 or uint32 token ids."""

    num_tokens: int = Field(gt=0, description="Number of token ids in the file.")


class DataSection(Section):
    """Token shards for training and validation, and the tokenizer that made them."""

    dtype: Literal["uint16", "uint32"] = Field("uint16", description="Integer type of the token ids in the shards.")
    train: tuple[TokenShard, ...] = Field(min_length=1, description="Training shards, in order.")
    validation: tuple[TokenShard, ...] = Field((), description="Held-out shards; empty switches evaluation off.")
    tokenizer: FileRef | None = Field(None, description="The `tokenizers` JSON file.")


class BatchSection(Section):
    """How many tokens one step sees, and in which portions."""

    microbatch_samples: int = Field(gt=0, description="Samples per microbatch.")
    global_samples: int = Field(gt=0, description="Samples per step, over all replicas.")
    context_tokens: int = Field(gt=0, description="Tokens per sample (the model predicts each from those before).")
    max_in_flight: int = Field(0, ge=0, description="Microbatches in flight per stage-0 replica; 0 = 2 per stage.")

    @property
    def num_microbatches(self) -> int:
        """Microbatches per step."""
        return self.global_samples // self.microbatch_samples

    @property
    def tokens_per_microbatch(self) -> int:
        """Predicted tokens per microbatch."""
        return self.microbatch_samples * self.context_tokens

    @property
    def tokens_per_step(self) -> int:
        """Predicted tokens per step."""
        return self.global_samples * self.context_tokens

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.global_samples % self.microbatch_samples:
            raise ValueError(
                f"global_samples {self.global_samples} is not a multiple of microbatch_samples {self.microbatch_samples}"
            )
        if self.num_microbatches > MAX_MICROBATCHES:
            raise ValueError(f"{self.num_microbatches} microbatches per step; at most {MAX_MICROBATCHES} are allowed")
        return self


class OptimizerSection(Section):
    """The optimizer, its schedule and gradient clipping."""

    kind: Literal["adamw", "sgd"] = Field("adamw", description="AdamW (decoupled weight decay) or SGD with momentum.")
    learning_rate: float = Field(ge=0, description="Peak learning rate.")
    min_learning_rate: float = Field(0.0, ge=0, description="Learning rate at the end of a cosine or linear decay.")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW beta1; SGD momentum.")
    beta2: float = Field(0.999, ge=0, lt=1, description="AdamW beta2.")
    eps: float = Field(1e-8, gt=0, description="AdamW epsilon.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled decay (AdamW) or L2 (SGD); matrices only, norms never.")
    schedule: Literal["constant", "cosine", "linear"] = Field("constant", description="Shape after the warm-up.")
    warmup_steps: int = Field(0, ge=0, description="Steps of linear warm-up.")
    clip_norm: float = Field(1.0, ge=0, description="Clip gradients to this norm; 0 = no clipping.")
    clip_scope: Literal["global", "per_stage"] = Field("global", description="Norm over the model, or over each stage.")


class RecoverySection(Section):
    """What happens when a stage has no replica left."""

    policy: Policy = Field("checkfree_plus", description="Recovery policy.")
    weighting: Literal["gradient_norm", "gradient_norm_clipped", "uniform"] = Field(
        "gradient_norm", description="Weights of the neighbours: last gradient norm; clipped as in the paper's code; equal."
    )
    moments: Literal["fresh", "averaged"] = Field(
        "fresh", description="Moments of a rebuilt stage: zero; the neighbours', bias-corrected and weighted (3 x the bytes)."
    )
    lr_factor: float = Field(1.1, gt=0, le=10, description="Factor on the learning rate of a rebuilt stage.")
    lr_factor_decay_steps: int = Field(
        0, ge=0, le=1_000_000, description="Steps over which that factor falls back to 1, linearly; 0 = it stays."
    )
    stale_max_steps: int = Field(
        50, ge=0, le=64, description="A lost stage rather goes on from a state of its own that is at most so many steps old."
    )
    newcomer_wait_s: float = Field(
        5.0, ge=0, description="Seconds until a neighbour takes a second seat for want of a newcomer."
    )
    embedding_copies: int = Field(
        2,
        ge=0,
        le=4,
        description="Passive replicas of stage 0 kept on block-stage nodes; without a value 2 for checkfree_plus, else 0.",
    )
    rebuild_grace_s: float = Field(30.0, ge=0, description="Seconds between a declared loss and a rebuild.")
    checkpoint_every: int = Field(
        0, ge=0, le=1_000_000, description="checkpoint only: every stage is saved after each so many steps."
    )
    checkpoint_store: str = Field(
        "", max_length=1024, description="checkpoint only: where to, a directory or fsspec URL that every node reaches."
    )

    shadow_every: int = Field(
        0, ge=0, le=MAX_SHADOW_STEPS, description="shadow only: chunks that are kept are at most so many steps apart; 1: exact."
    )
    shadow_dtype: Literal["bf16", "fp32"] = Field("bf16", description="shadow only: how it is sent and kept.")
    shadow_moments: bool = Field(False, description="shadow only: with the optimizer's moments (3 x the bytes).")
    shadow_link_share: float = Field(
        0.1, gt=0, le=1, description="shadow only: part of the time in which a link may carry what is kept."
    )

    @model_validator(mode="before")
    @classmethod
    def _copies_by_policy(cls, given: Any) -> Any:
        """CheckFree+ adds copies of the embedding stage; `LEAN` policies do not; the others keep something of every stage."""
        if isinstance(given, dict) and given.get("policy") in (*LEAN, "redundant", "shadow"):
            return {"embedding_copies": 0} | given
        return given

    @property
    def rebuilds(self) -> bool:
        """Is a lost stage made again, while the others keep what they have?"""
        return self.policy not in ("none", "checkpoint")

    @model_validator(mode="after")
    def _copies_once(self) -> Self:
        if self.policy == "redundant" and self.embedding_copies:
            raise ValueError("embedding_copies is not for policy redundant, which keeps a copy of every stage; leave it out")
        return self

    @model_validator(mode="after")
    def _has_shadows(self) -> Self:
        fields = type(self).model_fields
        named = [name for name in fields if name.startswith("shadow_") and getattr(self, name) != fields[name].default]
        if self.policy != "shadow" and named:
            raise ValueError(f"{named[0]} is for policy shadow, not {self.policy}; leave it out")
        if self.policy == "shadow" and not self.shadow_every:
            raise ValueError("policy shadow needs shadow_every: a number of steps; 1: an exact copy of each stage")
        if self.shadow_every == 1 and named[1:]:
            raise ValueError(f"{named[1]} is not for shadow_every 1, whose copies take part in each sum; leave it out")
        if self.shadow_every == 1 and self.embedding_copies:
            raise ValueError("embedding_copies is not for shadow_every 1, which keeps a copy of every stage; leave it out")
        return self

    @model_validator(mode="after")
    def _has_a_store(self) -> Self:
        given = {"checkpoint_every": self.checkpoint_every, "checkpoint_store": self.checkpoint_store}
        named = [name for name, value in given.items() if value]
        if self.policy != "checkpoint" and named:
            raise ValueError(f"{named[0]} is for policy checkpoint, not {self.policy}; leave it out")
        missing = [name for name, value in given.items() if not value]
        if self.policy == "checkpoint" and missing:
            what = {"checkpoint_every": "a number of steps", "checkpoint_store": "a directory or URL"}
            raise ValueError(f"policy checkpoint needs {missing[0]}: {what[missing[0]]}")
        if named and not (self.checkpoint_store.startswith("/") or "://" in self.checkpoint_store):
            raise ValueError(
                f"checkpoint_store {self.checkpoint_store}: give an absolute path or a URL: it means the same to all"
            )
        return self


class WireSection(Section):
    """How tensors are encoded between nodes."""

    activations: Literal["f32", "bf16"] = Field("f32", description="Codec of activations and their gradients.")
    gradients: Literal["f32", "bf16"] = Field("f32", description="Codec of weight gradients in the reduce.")
    chunk_bytes: int = Field(1 << 20, ge=4096, le=4 << 20, description="Size of a chunk in a stream, in bytes.")


class TimingSection(Section):
    """Heartbeats and deadlines, in seconds."""

    heartbeat_s: float = Field(1.0, gt=0, le=60, description="Interval of heartbeats.")
    lapse_heartbeats: int = Field(3, ge=2, le=100, description="Missed heartbeats until a peer counts as lapsed.")
    lease_s: float = Field(30.0, ge=2, le=3600, description="Validity of a lease in the DHT.")
    first_microbatch_s: float = Field(120.0, gt=0, description="Deadline of a microbatch before any was measured.")
    fork_after_s: float = Field(600.0, ge=0, description="Without a quorum for so long, those reachable go on.")
    join_pause_s: float = Field(60.0, ge=0, description="Longest that a step waits for a newcomer to have the newest state.")
    leave_notice_s: float = Field(
        120.0, ge=0, description="Longest that a node which is told to go stays for its stage's sake."
    )
    linger_s: float = Field(5.0, ge=0, description="How long a finished node still serves its peers.")

    @property
    def lapse_s(self) -> float:
        """Silence after which a peer counts as lapsed."""
        return self.heartbeat_s * self.lapse_heartbeats


class EvaluationSection(Section):
    """Forward-only passes on held-out shards."""

    every_steps: int = Field(0, ge=0, description="Evaluate after every so many steps; 0 = never.")
    num_microbatches: int = Field(4, gt=0, le=MAX_MICROBATCHES, description="Microbatches per evaluation.")


class ComputeSection(Section):
    """Options of the local computation that change numerics or memory."""

    autocast: Literal["none", "bf16"] = Field("none", description="Run blocks and head under bf16 autocast.")
    recompute_activations: bool = Field(False, description="Recompute block activations in the backward pass.")


class Manifest(Section):
    """A run. `digest` names it; `run_id` = slug + the first half of the digest."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$", description="Slug: lower-case letters, digits and '-'.")
    protocol_version: int = Field(PROTOCOL_VERSION, description="Version of the wire protocol.")
    seed: int = Field(0, ge=0, lt=1 << 31, description="Seed of the initial weights and of the order of the data.")
    model: ModelConfig = Field(description="Shape of the model.")
    num_block_stages: int = Field(ge=1, le=MAX_BLOCK_STAGES, description="Block stages 1..N; stage 0 is the embedding.")
    blocks_per_stage: tuple[int, ...] | None = Field(None, description="Uneven split of the blocks; null = equal.")
    start_replicas: int = Field(1, ge=1, le=64, description="Replicas per stage that must be there before step 1.")
    data: DataSection = Field(description="Training and validation data.")
    batch: BatchSection = Field(description="Batch geometry.")
    optimizer: OptimizerSection = Field(description="Optimizer, schedule, clipping.")
    max_steps: int = Field(gt=0, description="The run is finished after so many steps.")
    max_tokens: int = Field(0, ge=0, description="... or after so many trained tokens; 0 = no such limit.")
    recovery: RecoverySection = Field(default_factory=RecoverySection, description="Loss of a stage.")
    wire: WireSection = Field(default_factory=WireSection, description="Codecs.")
    timing: TimingSection = Field(default_factory=TimingSection, description="Heartbeats and deadlines.")
    evaluation: EvaluationSection = Field(default_factory=EvaluationSection, description="Validation loss.")
    compute: ComputeSection = Field(default_factory=ComputeSection, description="Local computation.")
    local: bool = Field(False, description="Everything on one machine: loopback addresses may be announced.")
    organiser: str = Field("", pattern=r"^([0-9a-f]{64})?$", description="Organiser's Ed25519 public key, hex.")
    admission: Admission = Field(
        "open",
        description="Who may join: whoever has an invite (open), or only peers with a ticket of the organiser (invited).",
    )

    @property
    def num_stages(self) -> int:
        """Stages including the embedding stage."""
        return self.num_block_stages + 1

    @property
    def digest(self) -> str:
        """sha256 (hex) of the canonical JSON form."""
        return hashlib.sha256(self.canonical()).hexdigest()

    @property
    def run_id(self) -> str:
        """Slug and 16 hex digits of the digest."""
        return f"{self.name}-{self.digest[:16]}"

    @property
    def last_step(self) -> int:
        """Number of the step after which the run is finished."""
        if not self.max_tokens:
            return self.max_steps
        return min(self.max_steps, max(1, -(-self.max_tokens // self.batch.tokens_per_step)))

    @property
    def fork_after_s(self) -> float:
        """Without a quorum for so long, those reachable go on; what runs on one machine need not wait for a network."""
        timing = self.timing
        soon = timing.lapse_s + self.recovery.rebuild_grace_s
        return min(timing.fork_after_s, soon) if self.local else timing.fork_after_s

    @property
    def swapped(self) -> bool:
        """Odd microbatches take the swapped order (CheckFree+)."""
        return self.recovery.policy == "checkfree_plus"

    @property
    def keeps_shadows(self) -> bool:
        """Does another node keep chunks of each stage, some steps old?"""
        return self.recovery.policy == "shadow" and not self.has_exact_shadows

    @property
    def has_exact_shadows(self) -> bool:
        """Is what another node keeps of each stage a passive replica of it?"""
        return self.recovery.policy == "shadow" and self.recovery.shadow_every == 1

    @property
    def copies_stages(self) -> bool:
        """Does each stage have a passive replica at a node that computes another one?"""
        return self.redundant or self.has_exact_shadows

    @property
    def redraws(self) -> bool:
        """A lost block stage is drawn anew from the seed, and needs no other."""
        return self.recovery.policy == "random"

    @property
    def redundant(self) -> bool:
        """Whoever computes a stage holds a passive replica of the next one as well, and runs its forward passes (Bamboo)."""
        return self.recovery.policy == "redundant"

    @property
    def max_in_flight(self) -> int:
        """Microbatches in flight per stage-0 replica."""
        return self.batch.max_in_flight or 2 * self.num_stages

    def canonical(self) -> bytes:
        """The byte form that is hashed and signed: JSON, sorted keys, no spaces."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()

    def blocks_of(self, stage: int) -> range:
        """Indices of the transformer blocks of block stage `stage` (1..N)."""
        assert 1 <= stage <= self.num_block_stages, f"stage {stage} has no blocks"
        if self.blocks_per_stage is None:
            per = self.model.num_hidden_layers // self.num_block_stages
            return range((stage - 1) * per, stage * per)
        first = sum(self.blocks_per_stage[: stage - 1])
        return range(first, first + self.blocks_per_stage[stage - 1])

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_split(self)
        if self.protocol_version != PROTOCOL_VERSION:
            raise ValueError(
                f"protocol_version {self.protocol_version}: this program speaks {PROTOCOL_VERSION}; "
                "install the version of regrow that the run was started with"
            )
        if self.batch.context_tokens > self.model.max_position_embeddings:
            raise ValueError(
                f"batch.context_tokens {self.batch.context_tokens} exceeds "
                f"model.max_position_embeddings {self.model.max_position_embeddings}"
            )
        if self.batch.num_microbatches < self.start_replicas:
            raise ValueError(
                f"{self.batch.num_microbatches} microbatches per step cannot be shared by start_replicas {self.start_replicas}"
            )
        if self.model.vocab_size > 65536 and self.data.dtype == "uint16":
            raise ValueError(f"data.dtype uint16 cannot hold model.vocab_size {self.model.vocab_size}; use uint32")
        if self.optimizer.min_learning_rate > self.optimizer.learning_rate:
            raise ValueError("optimizer.min_learning_rate exceeds optimizer.learning_rate")
        if self.optimizer.warmup_steps >= self.last_step and self.optimizer.schedule != "constant":
            raise ValueError(
                f"optimizer.warmup_steps {self.optimizer.warmup_steps} leaves none of the {self.last_step} steps to decay"
            )
        return self


def _check_split(m: Manifest) -> None:
    layers, stages = m.model.num_hidden_layers, m.num_block_stages
    if m.recovery.policy == "checkfree_plus" and stages < 4:
        raise ValueError(
            f"recovery.policy checkfree_plus swaps stages and needs num_block_stages >= 4, not {stages}; use checkfree"
        )
    averages = m.recovery.rebuilds and not m.redraws
    if m.blocks_per_stage is None:
        if layers % stages:
            raise ValueError(
                f"{layers} transformer blocks do not divide into {stages} equal block stages; change num_block_stages"
                " or, with recovery.policy none, random or checkpoint, give blocks_per_stage"
            )
        return
    if len(m.blocks_per_stage) != stages or min(m.blocks_per_stage) < 1 or sum(m.blocks_per_stage) != layers:
        raise ValueError(
            f"blocks_per_stage {list(m.blocks_per_stage)} must hold {stages} positive numbers that add up to {layers}"
        )
    if averages and len(set(m.blocks_per_stage)) > 1:
        raise ValueError(
            f"recovery.policy {m.recovery.policy} makes a stage of others tensor by tensor, so every block stage must hold"
            " equally many blocks; use an equal split or recovery.policy none"
        )


def slug(text: str) -> str:
    """`text` as a valid manifest name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:31] or "run"


def from_mapping(data: dict[str, Any]) -> Manifest:
    """A manifest from parsed YAML. Raises `ValueError` with one line per wrong field."""
    return Manifest.model_validate(data)

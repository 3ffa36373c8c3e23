"""The LLaMA model, cut into stages. Parameter names are those of Hugging Face checkpoints.

Legend of shape suffixes: B samples, T tokens of context, D hidden size, F intermediate size, V vocabulary, H query heads,
G key/value heads, K width of a head, N = B * T rows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from node.stage.rope import rope_table, rotate
from protocol.manifest import Manifest, ModelConfig

HEAD_ROWS = 512
"""Rows whose logits exist at the same time: bounds memory at 32k tokens of vocabulary, and is faster than all at once."""


class Linear(nn.Linear):
    """Without an initialiser: weights come from the seed, and torch's own takes seconds to load on the meta device."""

    def reset_parameters(self) -> None:
        """Leave the weight as it is."""


class Embedding(nn.Embedding):
    """See `Linear`."""

    def reset_parameters(self) -> None:
        """Leave the weight as it is."""


class RMSNorm(nn.Module):
    """x / rms(x) * weight, computed in f32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Same shape; f32."""
        x_BTD = x_BTD.float()
        return self.weight * (x_BTD * torch.rsqrt(x_BTD.pow(2).mean(-1, keepdim=True) + self.eps))


class Attention(nn.Module):
    """Causal self-attention with rotary positions; query heads share key/value heads in groups."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, kv_width = config.hidden_size, config.num_key_value_heads * config.head_dim
        self.head_dim = config.head_dim
        self.q_proj = Linear(width, width, bias=False)
        self.k_proj = Linear(width, kv_width, bias=False)
        self.v_proj = Linear(width, kv_width, bias=False)
        self.o_proj = Linear(width, width, bias=False)

    def forward(self, x_BTD: Tensor, cos_T1K: Tensor, sin_T1K: Tensor) -> Tensor:
        """Same shape."""
        heads = (*x_BTD.shape[:2], -1, self.head_dim)
        q_BTHK = rotate(self.q_proj(x_BTD).view(heads), cos_T1K, sin_T1K)
        k_BTGK = rotate(self.k_proj(x_BTD).view(heads), cos_T1K, sin_T1K)
        v_BTGK = self.v_proj(x_BTD).view(heads)
        mixed_BHTK = functional.scaled_dot_product_attention(
            q_BTHK.transpose(1, 2),
            k_BTGK.transpose(1, 2),
            v_BTGK.transpose(1, 2),
            is_causal=True,
            enable_gqa=k_BTGK.shape[2] != q_BTHK.shape[2],
        )
        out_BTD: Tensor = self.o_proj(mixed_BHTK.transpose(1, 2).reshape(x_BTD.shape))
        return out_BTD


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Same shape."""
        out_BTD: Tensor = self.down_proj(functional.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))
        return out_BTD


class Block(nn.Module):
    """One transformer block. The residual stream stays f32, also under autocast."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, h_BTD: Tensor, cos_T1K: Tensor, sin_T1K: Tensor) -> Tensor:
        """Same shape."""
        h_BTD = h_BTD + self.self_attn(self.input_layernorm(h_BTD), cos_T1K, sin_T1K)
        out_BTD: Tensor = h_BTD + self.mlp(self.post_attention_layernorm(h_BTD))
        return out_BTD


class BlockStage(nn.Module):
    """Blocks `manifest.blocks_of(stage)`. Positions always start at 0: a sample is one context."""

    cos_T1K: Tensor
    sin_T1K: Tensor

    def __init__(self, manifest: Manifest, stage: int) -> None:
        super().__init__()
        blocks = {str(index): Block(manifest.model) for index in manifest.blocks_of(stage)}
        self.model = nn.Module()
        self.model.layers = nn.ModuleDict(blocks)
        self.blocks = list(blocks.values())
        self.config = manifest.model
        self.context = manifest.batch.context_tokens
        self.recompute = manifest.compute.recompute_activations

    def place(self, device: torch.device) -> None:
        """Make the table of rotations on `device`."""
        self.cos_T1K, self.sin_T1K = rope_table(self.config, self.context, device)

    def forward(self, h_BTD: Tensor) -> Tensor:
        """Same shape."""
        for block in self.blocks:
            if self.recompute and torch.is_grad_enabled():
                h_BTD = checkpoint(block, h_BTD, self.cos_T1K, self.sin_T1K, use_reentrant=False, preserve_rng_state=False)
            else:
                h_BTD = block(h_BTD, self.cos_T1K, self.sin_T1K)
        return h_BTD


class EmbeddingStage(nn.Module):
    """Stage 0: token embedding, final norm and LM head (the embedding's own weight where tied)."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__()
        config = manifest.model
        self.model = nn.Module()
        self.model.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.model.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tied = config.tie_word_embeddings

    def place(self, device: torch.device) -> None:
        """Nothing but parameters to place."""

    def embed(self, tokens_BT: Tensor) -> Tensor:
        """[B, T, D] in f32."""
        return functional.embedding(tokens_BT, self.model.get_parameter("embed_tokens.weight"))

    @property
    def head_weight(self) -> Tensor:
        """[V, D]."""
        return self.get_parameter("model.embed_tokens.weight" if self.tied else "lm_head.weight")

    def logits(self, h_ND: Tensor) -> Tensor:
        """[N, V] in f32."""
        norm = self.model.get_submodule("norm")
        return functional.linear(norm(h_ND), self.head_weight).float()

    def loss(self, h_ND: Tensor, targets_N: Tensor) -> Tensor:
        """Sum of the token losses in nats, an f32 scalar. The logits are [N, V]: give it `HEAD_ROWS` rows at a time."""
        return functional.cross_entropy(self.logits(h_ND), targets_N, reduction="sum")


StageModule = BlockStage | EmbeddingStage


def skeleton(manifest: Manifest, stage: int) -> StageModule:
    """The stage's module on the meta device: names and shapes, no memory."""
    with torch.device("meta"):
        return BlockStage(manifest, stage) if stage else EmbeddingStage(manifest)

"""Which tokens a sample is: a pure function of (manifest, step, microbatch, row).

The training text is the concatenation of the train shards. *Windows* of context_tokens + 1 tokens start every context_tokens
tokens, so that each token is predicted once per epoch; a tail shorter than a window is left out. In each epoch the windows come
in another order: a permutation computed pointwise from seed and epoch, never stored. When an epoch is used up the next begins.
Held-out windows come in their natural order, and again from the start.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.manifest import Manifest, TokenShard

TOKEN_BYTES = {"uint16": 2, "uint32": 4}
_MASK = (1 << 64) - 1
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of a microbatch: `first_token` is its offset in the training or validation text."""

    epoch: int
    window: int
    first_token: int


def num_windows(num_tokens: int, context_tokens: int) -> int:
    """Windows in a text of `num_tokens` tokens; 0 where it is shorter than one."""
    return max(0, num_tokens - 1) // context_tokens


def num_train_windows(manifest: Manifest) -> int:
    """Samples per epoch."""
    return num_windows(_num_tokens(manifest.data.train), manifest.batch.context_tokens)


def num_validation_windows(manifest: Manifest) -> int:
    """Held-out samples."""
    return num_windows(_num_tokens(manifest.data.validation), manifest.batch.context_tokens)


def train_samples(manifest: Manifest, step: int, microbatch: int) -> list[Sample]:
    """The rows of a training microbatch. Steps count from 1, microbatches of a step from 0."""
    batch, windows = manifest.batch, num_train_windows(manifest)
    assert step >= 1, f"step {step}: steps count from 1"
    assert 0 <= microbatch < batch.num_microbatches, f"microbatch {microbatch} of {batch.num_microbatches}"
    assert windows, "check_data refuses a manifest whose training text is shorter than one sample"
    first = (step - 1) * batch.global_samples + microbatch * batch.microbatch_samples
    samples = []
    for index in range(first, first + batch.microbatch_samples):
        epoch, place = divmod(index, windows)
        window = permuted(place, windows, manifest.seed, epoch)
        samples.append(Sample(epoch, window, window * batch.context_tokens))
    return samples


def validation_samples(manifest: Manifest, microbatch: int) -> list[Sample]:
    """The rows of a held-out microbatch, counted from 0. `epoch` is how often the held-out text was begun again."""
    batch, windows = manifest.batch, num_validation_windows(manifest)
    assert microbatch >= 0 and windows, "there is nothing held out"
    first = microbatch * batch.microbatch_samples
    places = (divmod(index, windows) for index in range(first, first + batch.microbatch_samples))
    return [Sample(epoch, window, window * batch.context_tokens) for epoch, window in places]


def epoch_of(manifest: Manifest, step: int) -> int:
    """Epoch of the last sample of a step; it grows by one where the data was used up and is shuffled again."""
    return (step * manifest.batch.global_samples - 1) // num_train_windows(manifest)


def permuted(place: int, count: int, seed: int, epoch: int) -> int:
    """Where `place` goes in the permutation of range(count) that (seed, epoch) name.

    A balanced Feistel network over the next even number of bits, walked until it lands inside the range again (fewer than
    4 walks on average): a bijection of range(count) for every count >= 1, exact on every machine.
    """
    assert 0 <= place < count, f"place {place} of {count}"
    half = (max(2, (count - 1).bit_length()) + 1) // 2
    keys = [_mixed((seed << 32) ^ (epoch << 8) ^ i) for i in range(_ROUNDS)]
    while True:
        place = _feistel(place, half, keys)
        if place < count:
            return place


def _feistel(value: int, half: int, keys: list[int]) -> int:
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return left << half | right


def _mixed(value: int) -> int:
    """The finaliser of splitmix64: 64 bits in, 64 well-mixed bits out."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def check_data(manifest: Manifest) -> None:
    """Raises `ValueError`, naming the field, where the data section contradicts itself or is too short for one sample."""
    size = TOKEN_BYTES[manifest.data.dtype]
    for name, shards in (("train", manifest.data.train), ("validation", manifest.data.validation)):
        for i, shard in enumerate(shards):
            if shard.num_bytes != shard.num_tokens * size:
                raise ValueError(
                    f"data.{name}[{i}]: num_bytes {shard.num_bytes} is not num_tokens {shard.num_tokens} x {size} bytes"
                    f" of {manifest.data.dtype}; prepare the data again"
                )
        total, needed = _num_tokens(shards), manifest.batch.context_tokens + 1
        if shards and total < needed:
            raise ValueError(
                f"data.{name} holds {total} tokens, fewer than the {needed} of one sample (batch.context_tokens + 1);"
                " give more data or a shorter context"
            )
    if manifest.evaluation.every_steps and not manifest.data.validation:
        raise ValueError(
            f"evaluation.every_steps is {manifest.evaluation.every_steps} but data.validation is empty; give held-out"
            " shards or set evaluation.every_steps to 0"
        )


def _num_tokens(shards: tuple[TokenShard, ...]) -> int:
    return sum(shard.num_tokens for shard in shards)

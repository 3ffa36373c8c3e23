"""The tokenizer: a given `tokenizers` file, or a byte-level BPE trained on the data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import blake3

from node.data.documents import SEPARATOR
from node.ports import UnusableError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TRAIN_BYTES_PER_TOKEN = 2048
"""Text per token of the vocabulary that is enough to find its merges; more only takes longer."""
SEPARATORS = (SEPARATOR, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")
"""Tokens that end a document in well-known vocabularies; the first one that a tokenizer has is used."""
NUM_BYTE_TOKENS = 256


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a `tokenizer.json`. Raises `UnusableError`."""
    from tokenizers import Tokenizer

    try:
        text = path.read_bytes().decode()
    except IsADirectoryError:
        raise UnusableError(2, f"{path} is a directory; name the tokenizer.json in it") from None
    except FileNotFoundError:
        raise UnusableError(2, f"{path}: there is no such tokenizer file") from None
    except OSError as error:
        raise UnusableError(2, f"{path} cannot be read ({error.strerror}); check its permissions") from None
    except UnicodeDecodeError:
        raise UnusableError(2, f"{path} is not a tokenizer.json (it is not text)") from None
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception for every kind of bad file
        raise UnusableError(2, f"{path} is not a tokenizer.json: {' '.join(str(error).split())}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return _literal(tokenizer)


def _literal(tokenizer: Tokenizer) -> Tokenizer:
    """Text that looks like a special token is text."""
    tokenizer.encode_special_tokens = True
    return tokenizer


def train_tokenizer(texts: Iterator[str], total_bytes: int, vocab_size: int) -> Tokenizer:
    """A byte-level BPE with at most `vocab_size` tokens, the first of which ends a document. The same text gives the same one.

    Of much text a part is used, chosen by the hash of each piece; where the size is not known (`total_bytes` 0), the beginning.
    Raises `UnusableError`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size <= NUM_BYTE_TOKENS + 1:
        raise UnusableError(2, f"vocabulary of {vocab_size}: a byte-level BPE needs more than {NUM_BYTE_TOKENS + 1} tokens")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SEPARATOR],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(texts, total_bytes, vocab_size * TRAIN_BYTES_PER_TOKEN), trainer)
    return _literal(tokenizer)


def _sample(texts: Iterator[str], total_bytes: int, wanted_bytes: int) -> Iterator[str]:
    part = min(1.0, wanted_bytes / total_bytes) if total_bytes else 1.0
    taken = 0
    for text in texts:
        if part == 1.0 or chosen(text, part):
            yield text
            taken += len(text)
        if not total_bytes and taken >= wanted_bytes:
            return


def separator_id(tokenizer: Tokenizer, separator: str | None) -> int:
    """Id of the token that ends a document: the given one, else the first known. Raises `UnusableError`."""
    for token in (separator,) if separator is not None else SEPARATORS:
        number = tokenizer.token_to_id(token)
        if number is not None:
            return int(number)
    wanted = repr(separator) if separator is not None else f"none of {', '.join(SEPARATORS)}"
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values()][:8]
    raise UnusableError(
        2,
        f"the tokenizer has {'no token ' if separator is not None else ''}{wanted} to put between documents; name one with"
        f" --separator (its special tokens: {', '.join(special) or 'none'})",
    )


def vocab_size_of(tokenizer: Tokenizer) -> int:
    """One more than the largest id (some vocabularies have holes)."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)


def chosen(text: str, part: float) -> bool:
    """Whether a text is among the share `part` of all texts that its hash selects."""
    return int.from_bytes(blake3.blake3(text.encode()).digest()[:8]) < part * 2**64

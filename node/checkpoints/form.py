"""What a saved stage looks like: a safetensors file whose data are the stage's flat vectors behind one another.

    8 bytes: length of the header | JSON header | weights | exp_avg | exp_avg_sq        (little-endian f32)

Weights have their Hugging Face names, the moments the same with `exp_avg.` or `exp_avg_sq.` in front, so any reader of
safetensors reads it; but as the order is that of the flat vectors, the digest of a stage's state (`blake3` of weights, moments
and optimizer age) is that of the data, and nothing has to be put together. The header's metadata hold the facts and a check of
them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from blake3 import blake3

from protocol.ids import RecordId, StateId

SECTIONS = ("", "exp_avg.", "exp_avg_sq.")
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 16 << 20
NAME = re.compile(r"step-(\d{8,})\.stage-(\d{2,})\.([0-9a-f]{8,64})\.safetensors")


@dataclass(frozen=True, slots=True)
class Saved:
    """A stage as it was after a commit. `record` names that commit, which all stages of one complete set share."""

    run_id: str
    stage: int
    step: int
    state_id: StateId
    record: RecordId
    digest: str
    optimizer_age: int
    lr_factor: float
    num_elements: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"step-{self.step:08d}.stage-{self.stage:02d}.{self.state_id}.safetensors"

    @property
    def data_bytes(self) -> int:
        """Size of weights and moments."""
        return 4 * len(SECTIONS) * self.num_elements


def parse_name(name: str) -> tuple[int, int, StateId] | None:
    """(step, stage, state_id) that a file's name tells; None for any other file."""
    found = NAME.fullmatch(name)
    return (int(found[1]), int(found[2]), found[3]) if found else None


def head_of(saved: Saved, parameters: Sequence[tuple[str, tuple[int, ...]]]) -> bytes:
    """All that comes before the data. `parameters`: names and shapes in the order of the flat vectors."""
    sizes = [4 * math.prod(shape) for _, shape in parameters]
    assert sum(sizes) == 4 * saved.num_elements, f"{sum(sizes)} bytes of parameters, {saved.num_elements} elements"
    facts = json.dumps(asdict(saved), sort_keys=True)
    header: dict[str, object] = {"__metadata__": {"regrow": facts, "check": _check(facts)}}
    at = 0
    for section in SECTIONS:
        for (name, shape), size in zip(parameters, sizes, strict=True):
            header[section + name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
            at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def header_bytes(first: bytes) -> int:
    """How long the header is, by the first eight bytes. `ValueError` where they are none of a header."""
    length = int.from_bytes(first, "little")
    if len(first) != LENGTH_BYTES or not 0 < length <= MAX_HEADER_BYTES:
        raise ValueError("it does not begin as a saved stage does")
    return length


def read_header(text: bytes) -> Saved:
    """The facts. `ValueError` with the reason where they are not what was written."""
    try:
        metadata = json.loads(text)["__metadata__"]
        facts = metadata["regrow"]
        if metadata["check"] != _check(facts):
            raise ValueError("its header is damaged")
        return Saved(**json.loads(facts))
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError("its header is damaged") from None


def _check(facts: str) -> str:
    return blake3(facts.encode()).hexdigest()

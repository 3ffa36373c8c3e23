"""Frames of the two streams as bytes.

A chunk is encoded and decoded by hand, because the payload's bytes would otherwise be copied four more times
each way. What is written is what protobuf would write (a test compares); any other form is left to protobuf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from node.transport import swarm_pb2
from node.transport.bits import size_bytes, take_varint
from node.transport.checks import WireError
from node.transport.config import Answer, Closing, Hello, PayloadHead, Receipt, Welcome
from node.transport.names import Names
from node.transport.wire import fill, fill_union, from_pb, from_union, parse
from protocol.messages import Message

MAX_LIGHT_BYTES = 1 << 20
MAX_HEAD_BYTES = 64 << 10
MAX_HELLO_BYTES = 16 << 10
MAX_CHUNK_BYTES = 4 << 20
MAX_FRAME_BYTES = 8 << 20
"""What gRPC itself takes; a larger one is refused before it is in memory."""

_ANSWERS: dict[str, type[Answer]] = {"welcome": Welcome, "closing": Closing, "receipt": Receipt}
_ANSWER_FIELDS = {kind: name for name, kind in _ANSWERS.items()}
_CHUNK_TAG = 3 << 3 | 2
_POSITION_TAG = 1 << 3
_DATA_TAG = 2 << 3 | 2
_MAX_CHUNK_FRAME = MAX_CHUNK_BYTES + 64
_MAX_VARINT_BYTES = 9
"""Of a number that is not negative, as protobuf writes it."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of a payload."""

    position: int
    data: memoryview


def encode_hello(hello: Hello) -> bytes:
    """First frame of either stream (the same bytes for both)."""
    frame = swarm_pb2.LightFrame()
    fill(frame.hello, hello)
    return frame.SerializeToString()


def encode_message(message: Message, names: Names | None = None) -> bytes:
    """A control message as a frame. Raises `WireError` for what no peer would accept. With the `names` of a stream it has to be
    the next one that is written there."""
    frame = swarm_pb2.LightFrame()
    fill_union(frame.envelope, message, names)
    data = frame.SerializeToString()
    if len(data) > MAX_LIGHT_BYTES:
        raise WireError("size", f"a {type(message).__name__} of {len(data)} bytes; at most {MAX_LIGHT_BYTES}")
    return data


def encode_head(head: PayloadHead) -> bytes:
    """The frame in front of a payload's chunks. Raises `WireError` for what no peer would accept."""
    frame = swarm_pb2.BulkFrame()
    fill(frame.payload_head, head)
    data = frame.SerializeToString()
    if len(data) > MAX_HEAD_BYTES:
        raise WireError("size", f"a payload header of {len(data)} bytes; at most {MAX_HEAD_BYTES}")
    return data


def encode_chunk(position: int, data: memoryview) -> bytes:
    """A chunk frame; `data` is copied once. It is contiguous, of bytes, and not empty."""
    inner = bytes([_DATA_TAG]) + size_bytes(len(data))
    if position:  # proto3 leaves out what is 0
        inner = bytes([_POSITION_TAG]) + size_bytes(position) + inner
    return b"".join((bytes([_CHUNK_TAG]), size_bytes(len(inner) + len(data)), inner, data))


def encode_answer(answer: Answer) -> bytes:
    """What the listener writes."""
    frame = swarm_pb2.Answer()
    fill(getattr(frame, _ANSWER_FIELDS[type(answer)]), answer)
    return frame.SerializeToString()


def decode_answer(data: bytes) -> Answer:
    """What the listener wrote."""
    frame = parse(swarm_pb2.Answer, data, MAX_HELLO_BYTES)
    which = frame.WhichOneof("kind")
    if which is None:
        raise WireError("frame", "an answer of a kind that this version does not know")
    answer: Answer = from_pb(_ANSWERS[which], getattr(frame, which))
    return answer


def decode_hello(data: bytes) -> Hello:
    """First frame of either stream."""
    frame = parse(swarm_pb2.LightFrame, data, MAX_HELLO_BYTES)
    if frame.WhichOneof("kind") != "hello":
        raise WireError("order", "a stream begins with a Hello")
    return from_pb(Hello, frame.hello)


def decode_message(data: bytes, names: Names | None = None) -> Message:
    """A later frame of the light stream, the one after that which was decoded last with its `names`."""
    frame = parse(swarm_pb2.LightFrame, data, MAX_LIGHT_BYTES)
    if frame.WhichOneof("kind") != "envelope":
        raise WireError("order", "after the Hello only envelopes may follow on this stream")
    message: Message = from_union(Message, frame.envelope, names)
    return message


def decode_bulk(data: bytes) -> PayloadHead | Chunk:
    """A later frame of the bulk stream."""
    chunk = _quick_chunk(data)
    if chunk is not None:
        return chunk
    is_chunk = data[:1] == bytes([_CHUNK_TAG])
    frame: Any = parse(swarm_pb2.BulkFrame, data, _MAX_CHUNK_FRAME if is_chunk else MAX_HEAD_BYTES)
    which = frame.WhichOneof("kind")
    if which == "chunk":
        return Chunk(frame.chunk.position, memoryview(frame.chunk.data))
    if which == "payload_head":
        return from_pb(PayloadHead, frame.payload_head)
    raise WireError("order", "after the Hello only payload heads and chunks may follow on this stream")


def _quick_chunk(data: bytes) -> Chunk | None:
    """The chunk in a frame that is encoded as `encode_chunk` does it; None for any other bytes."""
    size = len(data)
    if not 4 < size <= _MAX_CHUNK_FRAME or data[0] != _CHUNK_TAG:
        return None
    at = _inside(data, 1)
    position = 0
    if at and data[at] == _POSITION_TAG:
        position, at = take_varint(data, at + 1, _MAX_VARINT_BYTES) or (0, 0)
    if not 0 < at < size or data[at] != _DATA_TAG:
        return None
    at = _inside(data, at + 1)
    return Chunk(position, memoryview(data)[at:]) if at else None


def _inside(data: bytes, at: int) -> int:
    """Index behind the length at this index, if it is that of all the bytes that follow, of which there are some; else 0."""
    length, behind = take_varint(data, at, _MAX_VARINT_BYTES) or (0, 0)
    return behind if length and behind + length == len(data) else 0

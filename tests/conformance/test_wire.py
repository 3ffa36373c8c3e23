"""Everything that peers say survives the wire unchanged, and no bytes whatever get anything else in."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from google.protobuf.descriptor import Descriptor
from hypothesis import example, given, settings
from hypothesis import strategies as st

from node.transport import checks, config, frames, swarm_pb2, wire
from node.transport.checks import MAY_BE_INFINITE, WireError, check, field_types
from node.transport.frames import Chunk
from protocol import ids, messages, records
from protocol.ids import Ballot, Member
from protocol.messages import Heartbeat, Message, PayloadHeader, PipeHeader, RecordsWanted, ReducedReport, Route, Suspect
from protocol.records import Commit, Record

SPOKEN = [
    cls
    for module in (ids, records, messages)
    for cls in vars(module).values()
    if isinstance(cls, type) and dataclasses.is_dataclass(cls) and cls.__module__ == module.__name__
]
OF_THE_TRANSPORT = [
    config.Hello,
    config.Welcome,
    config.Closing,
    config.PayloadHead,
    config.HeldStage,
    config.Description,
    config.BlobRequest,
    config.FetchRequest,
    config.DialBackRequest,
    config.DialBackAnswer,
    config.ObserveRequest,
]
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def values(hint: Any, place: str) -> st.SearchStrategy[Any]:
    """Anything that may stand in a field."""
    if hint is str:
        return st.text(max_size=8) if not place.endswith(".microbatches") else st.integers(0, 1 << 70).map(lambda n: f"{n:x}")
    if hint is float:
        return st.floats(allow_nan=False) if place in MAY_BE_INFINITE else FINITE
    if hint is int:
        return st.integers(checks.MIN_INT, checks.MAX_INT)
    if hint is bool:
        return st.booleans()
    if typing.get_origin(hint) is Literal:
        return st.sampled_from(typing.get_args(hint))
    if place.endswith(".owners"):
        return st.lists(st.integers(0, checks.MAX_TUPLE_ITEMS - 1), max_size=3).map(tuple)
    if typing.get_origin(hint) is tuple:
        return st.lists(values(typing.get_args(hint)[0], place), max_size=3).map(tuple)
    if isinstance(hint, types.UnionType):
        return st.one_of(*(values(member, place) for member in typing.get_args(hint)))
    return st.none() if hint is types.NoneType else instances(hint)


def instances(cls: Any) -> st.SearchStrategy[Any]:
    fields = field_types(cls)
    return st.builds(cls, *(values(hint, f"{cls.__name__}.{name}") for name, hint in fields.items()))


def leaves(cls: Any) -> Iterator[tuple[str, Any]]:
    yield from ((f"{cls.__name__}.{name}", hint) for name, hint in field_types(cls).items())


@pytest.mark.parametrize("cls", [*SPOKEN, *OF_THE_TRANSPORT], ids=lambda cls: cls.__name__)
def test_proto_has_the_same_fields(cls: type) -> None:
    """One message per dataclass, the same names in the same order."""
    descriptor: Descriptor = getattr(swarm_pb2, cls.__name__).DESCRIPTOR
    assert [field.name for field in descriptor.fields] == list(field_types(cls))


@pytest.mark.parametrize("union", [Message, PayloadHeader, Record], ids=["Envelope", "Header", "Record"])
def test_proto_has_the_same_unions(union: Any) -> None:
    descriptor = getattr(swarm_pb2, wire.UNION_MESSAGES[union]).DESCRIPTOR
    assert {field.name: field.message_type.name for field in descriptor.fields} == {
        wire.snake(cls.__name__): cls.__name__ for cls in typing.get_args(union)
    }


@pytest.mark.parametrize("cls", [*SPOKEN, *OF_THE_TRANSPORT], ids=lambda cls: cls.__name__)
@settings(max_examples=15)
@given(data=st.data())
def test_round_trip(cls: Any, data: st.DataObject) -> None:
    value = data.draw(instances(cls))
    pb: Any = wire.to_pb(value)
    assert wire.from_pb(cls, type(pb).FromString(pb.SerializeToString())) == value


@settings(max_examples=150)
@given(st.one_of(*(instances(cls) for cls in typing.get_args(Message))))
def test_messages_round_trip_as_frames(message: Any) -> None:
    assert frames.decode_message(frames.encode_message(message)) == message


@settings(max_examples=60)
@given(instances(config.PayloadHead), instances(config.Hello), instances(config.Closing), instances(config.Welcome))
def test_other_frames_round_trip(head: Any, hello: Any, closing: Any, welcome: Any) -> None:
    assert frames.decode_bulk(frames.encode_head(head)) == head
    assert frames.decode_hello(frames.encode_hello(hello)) == hello
    assert frames.decode_answer(frames.encode_answer(closing)) == closing
    assert frames.decode_answer(frames.encode_answer(welcome)) == welcome


@pytest.mark.parametrize("position", [0, 1, 127, 128, 1 << 20, (1 << 63) - 1])
@pytest.mark.parametrize("size", [1, 3, 127, 128, 70_000])
def test_a_chunk_is_what_protobuf_would_write(position: int, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    by_hand = frames.encode_chunk(position, memoryview(data)[:size])
    frame = swarm_pb2.BulkFrame(chunk=swarm_pb2.Chunk(position=position, data=data[:size]))
    assert by_hand == frame.SerializeToString()
    assert frames.decode_bulk(by_hand) == Chunk(position, memoryview(data)[:size])


@settings(max_examples=300)
@given(st.binary(max_size=60), st.integers(0, 1 << 40), st.integers(0, 80), st.binary(max_size=3))
def test_a_damaged_chunk_is_read_as_protobuf_reads_it(data: bytes, position: int, cut: int, tail: bytes) -> None:
    whole = swarm_pb2.BulkFrame(chunk=swarm_pb2.Chunk(position=position, data=data)).SerializeToString()
    read_alike(whole[:cut] + tail)


@settings(max_examples=600)
@example([0x80, 0x80, 0x80, 0])
@example([3, 8, 0x80, 0x80])
@example([0x80 + 5, 0, 8, 0x80, 0x80, 0x80, 0])
@given(st.lists(st.sampled_from([0, 1, 2, 3, 4, 8, 0x12, 0x80, 0x81, 0x83, 0xFF]), max_size=14))
def test_a_chunk_in_any_other_form_is_read_as_protobuf_reads_it(rest: list[int]) -> None:
    """Lengths of nothing, longer than they need to be, and cut off."""
    read_alike(bytes([0x1A, *rest]))


def read_alike(data: bytes) -> None:
    mine = outcome(frames.decode_bulk, data)
    if isinstance(mine, Chunk):
        theirs = swarm_pb2.BulkFrame.FromString(data).chunk
        assert (mine.position, bytes(mine.data)) == (theirs.position, theirs.data)


def outcome(decode: Any, data: bytes) -> Any:
    """Anything but a WireError escapes and fails the test."""
    try:
        return decode(data)
    except WireError as error:
        return error


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_checked_value_or_a_wire_error(data: bytes) -> None:
    for decode in (frames.decode_message, frames.decode_bulk, frames.decode_hello, frames.decode_answer):
        value = outcome(decode, data)
        if not isinstance(value, Chunk | WireError):
            check(value)


@settings(max_examples=200)
@given(st.one_of(*(instances(cls) for cls in typing.get_args(Message))), st.randoms(use_true_random=False))
def test_damaged_messages_give_a_checked_value_or_a_wire_error(message: Any, rng: Any) -> None:
    data = bytearray(frames.encode_message(message))
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    value = outcome(frames.decode_message, bytes(data))
    if not isinstance(value, WireError):
        check(value)


# ---- what `check` objects to

BALLOT = Ballot(1, "c")
BAD: list[tuple[Any, str]] = [
    (Member("p", -2), "Member.incarnation"),
    (Member("p", 1 << 63), "Member.incarnation"),
    (Member("p", True), "Member.incarnation"),
    (Member("p", 1.0), "Member.incarnation"),  # type: ignore[arg-type]
    (Member("p" * 4097, 1), "Member.peer"),
    (Member(b"p", 1), "Member.peer"),  # type: ignore[arg-type]
    (Suspect("p", "why"), "Suspect.member"),  # type: ignore[arg-type]
    (Heartbeat(1, Member("p", 1), "", 0, 0), "Heartbeat.ballot"),  # type: ignore[arg-type]
    (Route(1, (1,)), "Route.hops"),  # type: ignore[arg-type]
    (Route(1, []), "Route.hops"),  # type: ignore[arg-type]
    (messages.OpenStep(BALLOT, 1, 1, "", (), (), (), ("p",) * 8193), "OpenStep.watch"),
    (Commit("", 1, 1, (), float("inf"), 1), "Commit.loss_sum"),
    (messages.Propose(BALLOT, Member("p", 1), ()), "Propose.record"),  # type: ignore[arg-type]
    (messages.Propose(BALLOT, Commit("", 1, 1, (), float("nan"), 1), ()), "Commit.loss_sum"),
    (messages.Order("explode", 1, ""), "Order.action"),  # type: ignore[arg-type]
    (messages.ReduceReady(BALLOT, 1, 1, 0, "01", 0.0, 0, 0.0), "ReduceReady.microbatches"),
    (messages.ReduceReady(BALLOT, 1, 1, 0, "", 0.0, 0, 0.0), "ReduceReady.microbatches"),
    (messages.StartReduce(BALLOT, 1, 1, 0, (0, -1)), "StartReduce.owners"),
    (messages.StartReduce(BALLOT, 1, 1, 0, (8192,)), "StartReduce.owners"),
    (messages.StartReduce(BALLOT, 1, 1, 0, (0,) * 4097), "StartReduce.owners"),
    (messages.ReduceReady(BALLOT, 1, 1, 0, "f" * 1025, 0.0, 0, 0.0), "ReduceReady.microbatches"),
    (PipeHeader(BALLOT, 1, 1, "", "forward", 0, Route("x", ())), "Route.microbatch"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("value", "place"), BAD, ids=lambda value: str(value)[:50])
def test_check_objects(value: Any, place: str) -> None:
    with pytest.raises(WireError) as caught:
        check(value)
    assert str(caught.value).startswith(place + " ")
    with pytest.raises(WireError):
        wire.to_pb(value)


def test_a_diverged_run_may_say_so() -> None:
    report = ReducedReport(BALLOT, 1, 1, 0, "d", float("inf"))
    assert frames.decode_message(frames.encode_message(report)) == report


def test_the_exceptions_are_fields() -> None:
    places = {place for cls in SPOKEN for place, hint in leaves(cls) if hint is float}
    assert places >= MAY_BE_INFINITE


def test_sizes_are_checked_before_parsing() -> None:
    with pytest.raises(WireError, match=r"a LightFrame of 1048577 bytes; at most 1048576"):
        frames.decode_message(bytes((1 << 20) + 1))
    with pytest.raises(WireError, match="at most 65536"):
        frames.decode_bulk(b"\x12" * ((1 << 16) + 1))
    with pytest.raises(WireError, match="at most 4194368"):
        frames.decode_bulk(b"\x1a" * ((4 << 20) + 65))


def test_a_heartbeat_is_small() -> None:
    """With ids as long as they really are."""
    beat = Heartbeat(3, Ballot(12, "Qm" + "x" * 44), "f" * 32, 1000, 2)
    assert len(frames.encode_message(beat)) <= 112
    assert len(frames.encode_message(RecordsWanted("f" * 32))) <= 40

"""`Donors`: ranges of a living replica's state, from memory on virtual time and over gRPC; what a hostile donor sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest
import uvloop
from blake3 import blake3
from grpc import aio

from node.halves import Dtype, num_words, unpacked
from node.payloads import HandlePool
from node.ports import RANGE_ELEMENTS, SHADOW_ELEMENTS, Neighbours, NotHeldError, PeerError, StateFacts, StateRange
from node.shadows import CHUNK_BYTES, chunk_elements, num_vectors, shadow_form
from node.sim.donors import MemoryDonors, MemoryLibrary
from node.sim.loop import run_virtual
from node.transport import swarm_pb2 as pb
from node.transport import swarm_pb2_grpc
from node.transport.channel import Plaintext
from node.transport.config import FetchRequest, Library, TransportConfig
from node.transport.donors import GrpcDonors
from node.transport.grpc_transport import GrpcTransport
from protocol.ids import PeerId
from protocol.manifest import RecoverySection
from protocol.messages import Contact
from tests.conformance.tls_world import TlsWorld, peer
from tests.conformance.transport_worlds import GrpcWorld, opened, within
from tests.tools.house import House

SIZE = RANGE_ELEMENTS + 5


@dataclass
class Place:
    """A donor in its house, and the port through which it is asked."""

    house: House
    donors: Neighbours
    donor: Contact
    gone: Callable[[], Awaitable[None]]


def reader_of(house: House) -> Library:
    async def read(asked: FetchRequest) -> StateRange | None:
        if asked.section == "gradient":
            return await house.holdings.gradient_range(asked.stage, asked.state_id, asked.first, asked.count)
        return await house.holdings.state_range(asked.stage, asked.first, asked.count)

    return Library(states=read)


Case = Callable[[Place], Awaitable[None]]


def run_memory(case: Case, seed: int) -> None:
    house, library = House(SIZE), MemoryLibrary(Random(seed))
    library.add("you", house.holdings)

    async def gone() -> None:
        library.remove("you")

    async def main() -> None:
        await case(Place(house, MemoryDonors(library), Contact("you", "you:1"), gone))

    run_virtual(main())


def run_grpc(case: Case, seed: int) -> None:
    async def main() -> None:
        async with opened(GrpcWorld, seed) as world:
            house, config = House(SIZE), TransportConfig("run-1", "you", 1)
            transport = await GrpcTransport.start(config, HandlePool(), world.group, world.rng, reader_of(house))
            world.closers.append(transport.close)
            donors = GrpcDonors(Plaintext(), progress_s=5.0)
            await case(Place(house, donors, Contact("you", transport.address), transport.close))

    uvloop.run(main())


def on_both(case: Case) -> Callable[..., None]:
    @pytest.mark.parametrize("run", [run_memory, run_grpc], ids=["memory", "grpc"])
    def test(run: Callable[[Case, int], None], seed: int) -> None:
        run(case, seed)

    test.__name__, test.__doc__ = case.__name__, case.__doc__
    return test


@on_both
async def test_a_range_comes_with_the_facts_of_its_state(place: Place) -> None:
    async with place.donors.visit(place.donor) as donor:
        for age in range(3):
            found = await within(donor.state_range(1, 2, 3))
            step, lr_factor = (age + 10, 0.55) if age else (0, 1.1)
            assert found.facts == StateFacts(f"state{age}", step, age, lr_factor, 3, f"digest{age}")
            assert bytes(found.data) == bytes([age]) * 36
            place.house.update()


@on_both
async def test_the_largest_range_comes_whole(place: Place) -> None:
    place.house.update()
    async with place.donors.visit(place.donor) as donor:
        found = await within(donor.state_range(1, 5, RANGE_ELEMENTS))
    assert bytes(found.data) == bytes([1]) * 12 * RANGE_ELEMENTS


@on_both
async def test_a_kept_gradient_comes_and_one_that_is_not_kept_is_said(place: Place) -> None:
    for _ in range(3):
        place.house.update()
    place.house.executor.kept = {2, 3}
    async with place.donors.visit(place.donor) as donor:
        found = await within(donor.gradient_range(1, "state2", 1, 4))
        assert (found.facts.state_id, found.facts.optimizer_age, bytes(found.data)) == ("state2", 2, bytes([2]) * 16)
        for state_id in ("state1", "elsewhere", ""):
            with pytest.raises(NotHeldError):
                await within(donor.gradient_range(1, state_id, 1, 4))
        assert await within(donor.state_range(1, 0, 1)), "the connection is as good as before"


@on_both
async def test_what_the_donor_does_not_have_is_said(place: Place) -> None:
    async with place.donors.visit(place.donor) as donor:
        for stage, first, count in ((2, 0, 1), (1, SIZE, 1), (1, SIZE - 1, 2)):
            with pytest.raises(NotHeldError):
                await within(donor.state_range(stage, first, count))


@on_both
async def test_a_donor_that_goes_is_a_fault_of_its_own(place: Place) -> None:
    async with place.donors.visit(place.donor) as donor:
        await within(donor.state_range(1, 0, 1))
        await place.gone()
        with pytest.raises(PeerError) as caught:
            await within(donor.state_range(1, 0, 1))
    assert caught.value.peer == "you"
    assert not isinstance(caught.value, NotHeldError)


# ---- over gRPC only


def chunk(first: int, data: bytes, **changes: Any) -> Any:
    facts = pb.StateFacts(state_id="s", step=1, optimizer_age=1, lr_factor=1.0, generation=0, digest="d")
    return pb.RangeChunk(**({"first": first, "data": data, "checksum": blake3(data).digest(), "facts": facts} | changes))


@dataclass
class Evil(swarm_pb2_grpc.LibraryServicer):
    """Answers with these chunks, then ends or is silent."""

    chunks: list[Any]
    silent: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def Fetch(self, _request: Any, context: Any) -> None:
        for item in self.chunks:
            await context.write(item)
        if self.silent:
            await self.over.wait()


@asynccontextmanager
async def asked(evil: Evil) -> AsyncIterator[Any]:
    """A connection to it."""
    server = aio.server(options=[("grpc.so_reuseport", 0)])
    swarm_pb2_grpc.add_LibraryServicer_to_server(evil, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with GrpcDonors(Plaintext(), progress_s=0.5).visit(Contact("mallory", f"127.0.0.1:{port}")) as donor:
            yield donor
    finally:
        evil.over.set()
        await server.stop(1.0)


ELEMENT = bytes(12)
NAN_FACTS = pb.StateFacts(state_id="s", step=1, optimizer_age=1, lr_factor=float("nan"))
LONG_FACTS = pb.StateFacts(state_id="s" * 5000, lr_factor=1.0)
EVIL: dict[str, tuple[list[Any], str]] = {
    "checksum": ([chunk(0, ELEMENT, checksum=b"x" * 32)], "whose checksum is wrong"),
    "no checksum": ([chunk(0, ELEMENT, checksum=b"")], "whose checksum is wrong"),
    "elsewhere": ([chunk(7, ELEMENT)], "nobody asked for"),
    "too much": ([chunk(0, ELEMENT), chunk(3, ELEMENT)], "nobody asked for"),
    "too little": ([chunk(0, ELEMENT[:8])], "8 of 12 bytes"),
    "half an element": ([chunk(0, ELEMENT[:7])], "whose checksum is wrong"),
    "nothing": ([], "0 of 12 bytes"),
    "factor": ([chunk(0, ELEMENT, facts=NAN_FACTS)], "StateFacts.lr_factor is nan"),
    "long name": ([chunk(0, ELEMENT, facts=LONG_FACTS)], "StateFacts.state_id is not a string"),
}


@pytest.mark.parametrize("name", EVIL)
def test_what_a_hostile_donor_sends_is_its_fault(name: str) -> None:
    async def main() -> None:
        chunks, reason = EVIL[name]
        async with asked(Evil(chunks)) as donor:
            with pytest.raises(PeerError, match=reason) as caught:
                await within(donor.state_range(1, 0, 1))
            assert caught.value.peer == "mallory"

    uvloop.run(main())


@pytest.mark.parametrize("chunks", [[], [chunk(0, ELEMENT[:4])]], ids=["at once", "midway"])
def test_a_donor_that_brings_nothing_is_given_up(chunks: list[Any]) -> None:
    async def main() -> None:
        async with asked(Evil(chunks, silent=True)) as donor:
            with pytest.raises(PeerError, match="no answer in time"):
                await within(donor.state_range(1, 0, 1))

    uvloop.run(main())


def test_another_gradient_than_was_asked_for_is_not_taken() -> None:
    async def main() -> None:
        async with asked(Evil([chunk(0, ELEMENT[:4])])) as donor:
            with pytest.raises(PeerError, match="nobody asked for"):
                await within(donor.gradient_range(1, "t", 0, 1))

    uvloop.run(main())


def test_another_state_than_was_asked_for_is_not_taken() -> None:
    async def main() -> None:
        async with asked(Evil([chunk(0, ELEMENT)])) as donor:
            assert await within(donor.state_of(1, "s", 0, 1))
            assert await within(donor.mixed_range(1, "s", 0, 1, num_words=3))
            for ask in (donor.state_of(1, "t", 0, 1), donor.mixed_range(1, "t", 0, 1, num_words=3)):
                with pytest.raises(PeerError, match="nobody asked for"):
                    await within(ask)
            with pytest.raises(PeerError, match="nobody asked for"):
                await within(donor.mixed_range(1, "s", 0, 1, num_words=1))

    uvloop.run(main())


NUM_AT_ONCE = 4


def serve_slowly(seed: int, case: Case, answer_s: float, **config: Any) -> None:
    """A donor that takes so long for each answer; who asks it is patient for less than two of them."""

    async def main() -> None:
        async with opened(GrpcWorld, seed) as world:
            house = House(SIZE)

            async def read(asked: FetchRequest) -> StateRange | None:
                await asyncio.sleep(answer_s)
                return await house.holdings.state_range(asked.stage, asked.first, asked.count)

            of = TransportConfig("run-1", "you", 1, **config)
            transport = await GrpcTransport.start(of, HandlePool(), world.group, world.rng, Library(states=read))
            world.closers.append(transport.close)
            donors = GrpcDonors(Plaintext(), progress_s=1.9 * answer_s)
            await case(Place(house, donors, Contact("you", transport.address), transport.close))

    uvloop.run(main())


def test_answers_come_one_after_another_and_who_waits_for_his_hears_the_others(seed: int) -> None:
    """The last one waits for longer than it would for a donor that brings nothing."""
    came: list[int] = []

    async def case(place: Place) -> None:
        async with place.donors.visit(place.donor) as donor, asyncio.TaskGroup() as group:

            async def ask(number: int) -> None:
                await donor.state_range(1, number, 1)
                came.append(number)

            for number in range(NUM_AT_ONCE):
                group.create_task(ask(number))

    serve_slowly(seed, case, 0.25)
    assert sorted(came) == [*range(NUM_AT_ONCE)]


def test_a_donor_that_serves_enough_already_says_so(seed: int) -> None:
    async def case(place: Place) -> None:
        async with place.donors.visit(place.donor) as donor:
            found = await asyncio.gather(*(donor.state_range(1, 0, 1) for _ in range(NUM_AT_ONCE)), return_exceptions=True)
        assert sorted(type(x).__name__ for x in found) == ["BusyError"] * 2 + ["StateRange"] * 2

    serve_slowly(seed, case, 0.25, max_serves=2)


@pytest.mark.parametrize("count", [0, RANGE_ELEMENTS + 1, 1 << 62])
def test_no_more_is_read_than_a_range(count: int, seed: int) -> None:
    async def case(place: Place) -> None:
        async with place.donors.visit(place.donor) as donor:
            with pytest.raises(PeerError, match="are given at once"):
                await within(donor.state_range(1, 0, count))
        assert not place.house.executor.num_reads

    run_grpc(case, seed)


@pytest.mark.parametrize("moments", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_chunk_of_a_shadow_comes_at_once_and_no_more_than_the_largest(dtype: Dtype, moments: bool, seed: int) -> None:
    rules = RecoverySection(policy="shadow", shadow_every=10, shadow_dtype=dtype, shadow_moments=moments)
    count, vectors = chunk_elements(rules), num_vectors(rules)
    words, ones = vectors * num_words(count, dtype), np.ones(vectors * count, "<f4")
    assert 0.99 * CHUNK_BYTES < 4 * words <= CHUNK_BYTES

    async def read(asked: FetchRequest) -> StateRange | None:
        assert (asked.section, asked.count) == ("shadow", count)
        facts = StateFacts("s", 1, 1, 1.0, 0, "d")
        return StateRange(facts, shadow_form(StateRange(facts, ones.tobytes()), rules))

    async def main() -> None:
        async with opened(GrpcWorld, seed) as world:
            config = TransportConfig("run-1", "you", 1)
            transport = await GrpcTransport.start(config, HandlePool(), world.group, world.rng, Library(states=read))
            world.closers.append(transport.close)
            async with GrpcDonors(Plaintext()).visit(Contact("you", transport.address)) as donor:
                found = await within(donor.shadow_range(1, 3, count, words))
                with pytest.raises(PeerError, match="are given at once"):
                    await within(donor.shadow_range(1, 0, SHADOW_ELEMENTS + 1, words))
            data, size = bytes(found.data), 4 * words // vectors
            got = [unpacked(data[at : at + size], count, dtype) for at in range(0, len(data), size)]
            assert np.array_equal(np.concatenate(got), ones)

    uvloop.run(main())


class Counting:
    """A `Security` that counts the channels that are opened."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.num_channels = inner, 0

    async def channel(self, address: str, name: PeerId) -> aio.Channel:
        self.num_channels += 1
        channel: aio.Channel = await self.inner.channel(address, name)
        return channel


def test_over_tls_one_connection_serves_a_visit_and_only_peers_with_a_lease(seed: int) -> None:
    async def main() -> None:
        async with opened(TlsWorld, seed) as world:
            assert isinstance(world, TlsWorld)
            house, config = House(SIZE), TransportConfig("run-1", peer(0), 1)
            transport = await GrpcTransport.start(
                config, HandlePool(), world.group, world.rng, reader_of(house), security=world.security(peer(0))
            )
            world.closers += [transport.close, world.settle]
            world.publish(peer(0), transport.address)
            world.publish(peer(1))
            counted: list[int] = []
            security: Any = Counting(world.security(peer(1)))
            donors = GrpcDonors(
                security, lambda kind, way, size: counted.append(size) if (kind, way) == ("fetch", "in") else None
            )
            async with donors.visit(Contact(peer(0), transport.address)) as donor:
                for _ in range(5):
                    await within(donor.state_range(1, 0, 4))
            assert security.num_channels == 1
            assert counted == [48] * 5
            with pytest.raises(PeerError, match="is another peer"):
                async with donors.visit(Contact(peer(2), transport.address)):
                    pass
            async with GrpcDonors(world.security(peer(3))).visit(Contact(peer(0), transport.address)) as donor:
                with pytest.raises(PeerError, match="has no lease"):
                    await within(donor.state_range(1, 0, 1))

    uvloop.run(main())


def test_nobody_there_is_a_fault_of_the_donor(seed: int) -> None:
    async def main() -> None:
        async with opened(TlsWorld, seed) as world:
            assert isinstance(world, TlsWorld)
            with pytest.raises(PeerError, match="cannot reach"):
                async with GrpcDonors(world.security(peer(1))).visit(Contact(peer(0), world.dead_address())):
                    pass

    uvloop.run(main())

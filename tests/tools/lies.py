"""Well-formed nonsense: any message that passes the wire's checks, with values that are nearly right.

Drawn from what a hostile peer can know: the ballot, records, members, steps and addresses of the run that it watches.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from node.transport.checks import MAX_INT, MAX_TUPLE_ITEMS, WireError, check, field_types, optional_of, union_classes
from node.transport.frames import encode_message
from protocol.ids import Ballot, Member
from protocol.messages import Message, PipeHeader
from protocol.node_state import NodeState

HUGE = (MAX_INT, 2**53, 2**31, -1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 5e-324, 1e-300, 1e308, -1e308, float("nan"), float("inf"), float("-inf"))
LENGTHS = (0, 1, 1, 2, 3, 8)
TRIES = 50


@dataclass
class Liar:
    """Lies about the run as `truth` knows it. `me` is the member that the liar really is."""

    rng: Random
    me: Member
    truth: NodeState

    def message(self, *kinds: type) -> Any:
        """A message of one of these kinds (default: any) that every wire lets through."""
        for _ in range(TRIES):
            made = self._dataclass(self.rng.choice(kinds or typing.get_args(Message)))
            try:
                check(made)
                if not isinstance(made, PipeHeader):
                    encode_message(made)  # one that is too long ends the liar's own stream
            except WireError:
                continue
            return made
        raise AssertionError(f"no message of {kinds} within {TRIES} tries")

    def header(self) -> PipeHeader:
        """In front of an activation or a gradient; often along a route that really is in use."""
        made: PipeHeader = self.message(PipeHeader)
        step = self.truth.bench.open
        if step and step.routes and self.rng.random() < 0.7:
            route = self.rng.choice(step.routes)
            hop = self.rng.randrange(len(route.hops))
            made = PipeHeader(step.ballot, step.step, step.attempt, step.parent, made.kind, hop, route)
        return made

    def _dataclass(self, cls: Any) -> Any:
        return cls(*(self._value(name, hint) for name, hint in field_types(cls).items()))

    def _value(self, name: str, hint: Any) -> Any:
        if hint in _MAKERS:
            return _MAKERS[hint](self, name)
        origin = typing.get_origin(hint)
        if origin is Literal:
            return self.rng.choice(typing.get_args(hint))
        if origin is tuple:
            return self._tuple(name, typing.get_args(hint)[0])
        if optional_of(hint) is not None:
            return None if self.rng.random() < 0.5 else self._value(name, optional_of(hint))
        return self._dataclass(self.rng.choice(union_classes(hint) or (hint,)))

    def _tuple(self, name: str, item: Any) -> tuple[Any, ...]:
        if not dataclasses.is_dataclass(item) and self.rng.random() < 0.02:
            return (self._value(name, item),) * MAX_TUPLE_ITEMS
        return tuple(self._value(name, item) for _ in range(self.rng.choice(LENGTHS)))

    # ---- scalars

    def _integer(self, name: str) -> int:
        chain, step = self.truth.chain, self.truth.bench.open
        near = {
            "stage": tuple(range(-1, len(chain.state_ids) + 1)),
            "step": (chain.step, chain.step + 1, chain.step + 2),
            "attempt": (step.attempt, step.attempt + 1) if step else (1, 1001),
            "term": tuple(self.truth.ballot.term + ahead for ahead in (0, 0, 1, 2)),
            "microbatch": tuple(range(12)),
            "incarnation": tuple(member.incarnation + d for member in chain.members() for d in (0, 0, 1)),
        }.get(name, (0, 1, 2, chain.step, chain.tokens, chain.height))
        return self.rng.choice(near if near and self.rng.random() < 0.85 else HUGE)

    def _string(self, name: str) -> str:
        chain = self.truth.chain
        peers = [member.peer for member in chain.members()]
        near = {
            "peer": [*peers, self.me.peer, "", "nobody"],
            "microbatches": [f"{self.rng.randrange(1 << 12):x}", "0", "f" * 1024],
            "address": [*self.truth.bench.addresses.values(), "", "nonsense", "0.0.0.0:0", "\n:1", "127.0.0.1:1"],
            "digest": [seat.state.digest for seat in self.truth.bench.seats.values()],
        }.get(name, [chain.head, *chain.state_ids, *(d.record.parent for d in chain.after(chain.head) or ())])
        return self.rng.choice([*near, "x" * 4096] if self.rng.random() < 0.1 else near or ["x"])

    def _number(self, _name: str) -> float:
        return self.rng.choice(FLOATS) if self.rng.random() < 0.5 else self.rng.uniform(-10.0, 10.0)

    def _boolean(self, _name: str) -> bool:
        return self.rng.random() < 0.5

    def ballot(self) -> Ballot:
        """The one that is served, or one like it. None of its own: a member that claims the coordinator's role without having
        been promised it by a quorum breaks the protocol in a way that it does not defend itself against."""
        made: Ballot = self._dataclass(Ballot)
        return self.truth.ballot if made.peer == self.me.peer or self.rng.random() < 0.6 else made

    def member(self) -> Member:
        """Somebody of the run, or nearly."""
        made: Member = self._dataclass(Member)
        known = [*self.truth.chain.members(), self.me]
        return self.rng.choice(known) if self.rng.random() < 0.7 else made


_MAKERS: dict[Any, Callable[[Liar, str], Any]] = {
    int: Liar._integer,
    str: Liar._string,
    float: Liar._number,
    bool: Liar._boolean,
    Ballot: lambda liar, _: liar.ballot(),
    Member: lambda liar, _: liar.member(),
}

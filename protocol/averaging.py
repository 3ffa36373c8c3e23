"""Who averages what of a lost stage, and when: as soon as it has no holder, without being asked.

Everybody sees in its chain that a stage has lost its last holder, and computes what it will be made of (`protocol.recipes`).
Its *averagers*, up to three holders of the two sources, each mix an equal share of it: so it can be there before the
newcomer is known. Where the decided `Rebuild` names other sources after all, what was mixed is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

from protocol.chain import Chain
from protocol.commands import Command, MixAhead, StopMixing
from protocol.ids import PeerId, RecordId
from protocol.manifest import Manifest
from protocol.recipes import recipe, weights_of
from protocol.records import Source
from protocol.seat import Seat

MAX_AVERAGERS = 3
"""As many as a newcomer asks at once (`node.learning.MAX_DONORS`)."""


def averagers(chain: Chain, sources: Sequence[Source]) -> tuple[PeerId, ...]:
    """Who mixes, in the order of their shares: holders of the sources in turns, each once."""
    rows = [[s.member.peer for s in chain.holders(source.stage)] for source in sources]
    turns = [peer for turn in zip_longest(*rows) for peer in turn if peer is not None]
    return tuple(dict.fromkeys(turns))[:MAX_AVERAGERS]


def holds(seats: Mapping[int, Seat], source: Source) -> bool:
    """Does this node hold the source, as it is named?"""
    seat = seats.get(source.stage)
    return seat is not None and seat.settled and seat.state.state_id == source.state_id


def sources_of(stage: int, chain: Chain, manifest: Manifest) -> tuple[Source, ...]:
    """What a stage that is lost, or being rebuilt, is made of, as far as the chain tells; () where nothing is to be made."""
    rebuild = chain.rebuilds.get(stage)
    if chain.holders(stage):
        return rebuild.sources if rebuild else ()
    if not manifest.recovery.rebuilds or not chain.step or manifest.keeps_shadows:
        return ()  # what is restored of a shadow is not mixed, and it is not known yet whether there is one
    whole = [s for s in range(manifest.num_stages) if chain.holders(s) and s not in chain.rebuilds]
    weights = weights_of(chain.squared_norms, manifest.batch.tokens_per_step, manifest)
    return recipe(stage, whole, chain.state_ids, weights, manifest).sources


class Averaging:
    """One node's part in it. `emit` takes the commands that follow."""

    def __init__(
        self, manifest: Manifest, me: PeerId, chain: Chain, seats: Mapping[int, Seat], emit: Callable[[Command], None]
    ) -> None:
        self._manifest, self._me, self._chain, self._seats, self._emit = manifest, me, chain, seats, emit
        self._stages = frozenset(range(manifest.num_stages))
        self._mixing: dict[int, MixAhead] = {}
        self._head: RecordId = ""
        self._lacking: tuple[int, ...] = ()

    def look(self) -> None:
        """Something was decided, or a seat is another: begin, change or stop."""
        if self._chain.head != self._head:
            self._head, self._lacking = self._chain.head, self._stages_to_make()
        if not self._lacking and not self._mixing:
            return
        wanted = {stage: command for stage in self._lacking if (command := self._my_share(stage))}
        for stage in sorted(self._mixing.keys() - wanted.keys()):
            self._emit(StopMixing(stage))
        for stage, command in wanted.items():
            if command != self._mixing.get(stage):
                self._emit(command)
        self._mixing = wanted

    def _stages_to_make(self) -> tuple[int, ...]:
        lacking = self._stages - self._chain.held
        return tuple(sorted(lacking | self._chain.rebuilds.keys()))

    def _my_share(self, stage: int) -> MixAhead | None:
        """Only who holds one of two sources has something to fetch before it can mix."""
        sources = sources_of(stage, self._chain, self._manifest)
        team = averagers(self._chain, sources)
        if self._me not in team or [holds(self._seats, s) for s in sources].count(True) != 1 or len(sources) != 2:
            return None
        return MixAhead(stage, sources, team.index(self._me), len(team))

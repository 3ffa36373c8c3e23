"""What a learner needs to know of decisions, from the decision object of its node."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import StateId
from protocol.messages import Contact
from protocol.node_state import NodeState
from protocol.replays import Replay, replays


@dataclass(frozen=True, slots=True)
class ChainSyllabus:
    """`node.learning.Syllabus` from the chain and the addresses that the node knows."""

    state: NodeState

    def donors(self, stage: int) -> tuple[Contact, ...]:
        """Active and passive replicas, in roster order, that can be reached."""
        me, addresses = self.state.config.member.peer, self.state.bench.addresses
        peers = [s.member.peer for s in self.state.chain.holders(stage) if s.member.peer != me]
        return tuple(Contact(peer, addresses[peer]) for peer in peers if peer in addresses)

    def head(self, stage: int) -> StateId:
        """See `Syllabus`."""
        return self.state.chain.state_ids[stage]

    def replays(self, stage: int, state_id: StateId, lr_factor: float) -> tuple[Replay, ...] | None:
        """See `Syllabus`."""
        return replays(self.state.chain, self.state.config.manifest, stage, state_id, lr_factor)

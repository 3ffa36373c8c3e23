"""What a monitor counts of each node: only what the node shows, against the roots that others know. No clock, no I/O.

A root is believed for a step where most of the other members that know one tell this one. A claim that does not lead to it, or
takes what another node has shown to be its own, counts for nothing; nor does a node's own word for its work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from node.monitor.told import ShownProofs
from protocol.counted import Claim, verify
from protocol.ids import PeerId

MAX_STEPS = 4096
"""Of so many of the newest steps the roots are remembered, and what was counted of each."""
MAX_TELLERS = 16
"""Of one step."""
MAX_WAITING = 512
"""Claims of one node whose root is not known yet."""


@dataclass(slots=True)
class _Step:
    """What was counted of a step, under one root."""

    root: str
    shares: dict[tuple[int, PeerId], tuple[int, int]] = field(default_factory=dict)
    """By stage and peer: microbatches (bits), and their tokens."""


class Counted:
    """Fed with what nodes tell; `settle` counts what can be counted now."""

    def __init__(self, run_id: str) -> None:
        self._run = run_id
        self._roots: dict[int, dict[PeerId, str]] = {}
        self._waiting: dict[PeerId, dict[tuple[int, int], Claim]] = {}
        self._steps: dict[int, _Step] = {}
        self._tokens: dict[PeerId, Counter[int]] = {}
        self._oldest = 0
        """Of steps before this one it is not known any more what was counted."""
        self.num_refused: Counter[PeerId] = Counter()
        self._told_of: set[PeerId] = set()

    def hear(self, peer: PeerId, told: ShownProofs) -> None:
        """What a member shows, of its work and of the roots that it knows."""
        for step, root in told.roots:
            self._know(peer, step, root)
        waiting = self._waiting.setdefault(peer, {})
        for claim in told.read_claims:
            if (claim.run, claim.peer) != (self._run, peer) or claim.step < self._oldest:
                self.num_refused[peer] += 1
            else:
                waiting[claim.step, claim.stage] = claim
        while len(waiting) > MAX_WAITING:
            del waiting[next(iter(waiting))]

    def _know(self, peer: PeerId, step: int, root: str) -> None:
        told = self._roots.setdefault(step, {})
        if peer in told or len(told) < MAX_TELLERS:
            told[peer] = root
        while len(self._roots) > MAX_STEPS:
            del self._roots[min(self._roots)]

    def settle(self, members: Collection[PeerId]) -> list[PeerId]:
        """Count each claim whose root is known by now. Who was refused a claim, and had not been before."""
        for peer, waiting in self._waiting.items() if members else ():
            for place, claim in list(waiting.items()):
                root = self._believed(claim.step, peer, members)
                if root is None:
                    continue
                del waiting[place]
                if not verify(claim, root) or not self._count(peer, claim, root):
                    self.num_refused[peer] += 1
        news = [peer for peer in self.num_refused if peer not in self._told_of]
        self._told_of.update(news)
        return news

    def _believed(self, step: int, claimer: PeerId, members: Collection[PeerId]) -> str | None:
        """The step's root, as the others tell it; who is the only member has nobody to deceive."""
        alone = not any(peer != claimer for peer in members)
        told = self._roots.get(step, {})
        heard = Counter(root for peer, root in told.items() if peer in members and (peer != claimer or alone))
        if not heard:
            return None
        root, votes = heard.most_common(1)[0]
        return root if 2 * votes > sum(heard.values()) else None

    def _count(self, peer: PeerId, claim: Claim, root: str) -> bool:
        step = self._steps.get(claim.step)
        if step is None or step.root != root:
            self._forget(claim.step)
            step = self._steps[claim.step] = _Step(root)
        bits, place = int(claim.microbatches, 16), (claim.stage, peer)
        if any(bits & taken for (stage, other), (taken, _) in step.shares.items() if stage == claim.stage and other != peer):
            return False
        _, before = step.shares.get(place, (0, 0))
        step.shares[place] = bits, claim.tokens
        self._tokens.setdefault(peer, Counter())[claim.stage] += claim.tokens - before
        while len(self._steps) > MAX_STEPS:
            oldest = min(self._steps)
            del self._steps[oldest]  # what was counted stays counted
            self._oldest = oldest + 1
        return True

    def _forget(self, step: int) -> None:
        """It is decided otherwise: what was counted of it counts no more."""
        known = self._steps.pop(step, None)
        for (stage, peer), (_, tokens) in known.shares.items() if known else ():
            if peer in self._tokens:
                self._tokens[peer][stage] -= tokens

    def went_back(self, peer: PeerId, step: int) -> None:
        """The node stands at an earlier step again: what it told of those after that was given up."""
        for told in (told for at, told in self._roots.items() if at > step):
            told.pop(peer, None)
        for at in [at for at in self._steps if at > step]:
            for place in [place for place in self._steps[at].shares if place[1] == peer]:
                _, tokens = self._steps[at].shares.pop(place)
                self._tokens[peer][place[0]] -= tokens
        waiting = self._waiting.get(peer, {})
        self._waiting[peer] = {place: claim for place, claim in waiting.items() if place[0] <= step}

    def tokens(self, peer: PeerId) -> Mapping[int, int]:
        """By stage: tokens of the node's microbatches that commits count, as far as it has shown them."""
        return {stage: tokens for stage, tokens in sorted(self._tokens.get(peer, {}).items()) if tokens}

    def keep(self, peers: Collection[PeerId]) -> None:
        """The others have gone. Who comes again shows again what it has."""
        gone = {peer for known in (self._waiting, self._tokens, self.num_refused) for peer in known if peer not in peers}
        for step in self._steps.values() if gone else ():
            step.shares = {place: share for place, share in step.shares.items() if place[1] not in gone}
        for peer in gone:
            self._waiting.pop(peer, None)
            self._tokens.pop(peer, None)
            self.num_refused.pop(peer, None)
            self._told_of.discard(peer)

"""What replicas say of the states that they hold: equal state_id must mean equal digest."""

from __future__ import annotations

from collections import Counter, OrderedDict

from protocol.chain import Chain
from protocol.ids import Member, StateId

KEPT_STATES = 4


class Digests:
    """The last few states of each stage. Believed is what more than half of the stage's replicas say; where all have spoken and
    no digest has so many, what most say; where as many say one thing as another, the replica that comes first in roster order:
    it has been there longest."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._told: dict[int, OrderedDict[StateId, dict[Member, str]]] = {}

    def enter(self, stage: int, state_id: StateId, member: Member, digest: str) -> None:
        """A replica on the roster applied an update, or copied the state."""
        states = self._told.setdefault(stage, OrderedDict())
        states.setdefault(state_id, {})[member] = digest
        while len(states) > KEPT_STATES:
            states.popitem(last=False)

    def _states(self, stage: int) -> dict[StateId, dict[Member, str]]:
        return self._told.get(stage, OrderedDict())

    def believed(self, stage: int, state_id: StateId) -> str:
        """'' where too few replicas with a vote in it have said anything: the first to speak may be the wrong one."""
        told, voters = self._states(stage).get(state_id, {}), [s.member for s in self._chain.holders(stage)]
        spoken = [member for member in voters if member in told]
        if not spoken:
            return ""
        counts = Counter(told[member] for member in spoken)
        most = max(counts.values())
        digest = next(told[m] for m in spoken if counts[told[m]] == most)
        return digest if 2 * counts[digest] > len(voters) or len(spoken) == len(voters) else ""

    def odd(self, stage: int) -> list[tuple[Member, str, str]]:
        """(member, its digest, the believed one) of the stage's replicas that hold something else."""
        found: dict[Member, tuple[Member, str, str]] = {}
        disputed = [(state_id, told) for state_id, told in self._states(stage).items() if len(set(told.values())) > 1]
        holders = {s.member for s in self._chain.holders(stage)} if disputed else set()
        for state_id, told in disputed:
            right = self.believed(stage, state_id)
            for member, digest in told.items():
                if right and member in holders and digest != right:
                    found.setdefault(member, (member, digest, right))
        return list(found.values())

    def is_proven(self, stage: int, member: Member) -> bool:
        """Has the member applied an update with the digest that another replica has too?"""
        for told in self._states(stage).values():
            others = [d for m, d in told.items() if m != member]
            if member in told and told[member] in others:
                return True
        return False

    def forget(self, stage: int, member: Member) -> None:
        """What the member said of the stage counts no more: it begins anew."""
        for told in self._states(stage).values():
            told.pop(member, None)

"""Puts together what nodes say of one run: a function of what was seen and the time. No clock, no I/O.

Nodes lag, disagree and lie. What is told of the run is believed where enough voters tell it: voters are those on the roster
that was believed last (at first, and where none of them answers, everybody). The step is the largest that more than a third of
them have reached; of the others that tell it, those with the same head of the chain are the witnesses, the largest such group,
and numbers are their median. What a node says of itself is shown as its own, bounded by what the run has done.
"""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from node.leases import MAX_STAGES
from node.monitor.pace import Pace
from node.monitor.picture import LeaseState, NodeState, NodeView, Picture, Sighting, StageView
from node.monitor.told import ROLES, Role, Told
from node.plain_text import printable
from protocol.ids import PeerId
from protocol.rungs import LADDER

FRESH_S = 20.0
"""What was told longer ago says nothing of the run any more."""
WINDOW_S = 60.0
SUFFIX_CHARS = 12
MAX_POINTS = 256
MAX_REMEMBERED = 4096
T = TypeVar("T")
Roster = frozenset[tuple[int, PeerId, Role]]


class Swarm:
    """`look` is called whenever more was seen. It remembers what makes counters monotone and rates possible."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._members: frozenset[PeerId] = frozenset()
        self._pace = Pace(WINDOW_S)
        self._tokens = 0
        self._step = -1
        self._step_since = 0.0
        self._done: deque[tuple[float, int]] = deque(maxlen=MAX_POINTS)
        self._recoveries = Recoveries()

    def look(self, sightings: Sequence[Sighting], now: float) -> Picture:
        """The run now; each peer has one sighting."""
        fresh = {s.lease.peer: s for s in sightings if s.told is not None and now - s.told_at <= FRESH_S}
        for peer, seen in fresh.items():
            assert seen.told is not None, "fresh ones have told"
            self._pace.note(peer, seen.told.incarnation, seen.told_at, seen.told.step, seen.metrics)
        self._pace.keep(s.lease.peer for s in sightings)
        witnesses = self._witnesses({peer: s.told for peer, s in fresh.items() if s.told is not None})
        if not witnesses:
            return Picture(self._run_id, nodes=_nodes(sightings, fresh, frozenset(), None, self._pace, now))
        told = witnesses[0]
        roster = _most_common(t.seatings for t in witnesses)
        self._members = frozenset(peer for _, peer, _ in roster)
        self._note_progress(told.step, _median([t.tokens for t in witnesses]), now)
        self._recoveries.note({p: s for p, s in fresh.items() if p in self._members}, told.step)
        nodes = _nodes(sightings, fresh, self._members, told.step, self._pace, now)
        stages = self._stages(told.num_stages, roster, fresh)
        return Picture(
            run_id=self._run_id,
            step=told.step,
            last_step=_most_common(t.last_step for t in witnesses),
            phase=_most_common(t.phase for t in witnesses),
            sentence=printable(_most_common(t.sentence for t in witnesses), 500),
            loss=_loss(witnesses),
            validation=_validation(witnesses),
            tokens=self._tokens,
            tokens_per_second=self._rate(),
            commit_age_s=now - self._step_since,
            goodput=self._goodput(fresh),
            num_stages=told.num_stages,
            bottleneck=_bottleneck(stages),
            witnesses=len(witnesses),
            stages=stages,
            nodes=nodes,
            recoveries=self._recoveries.totals,
            roster=tuple(sorted(roster)),
        )

    def heeds(self, peer: PeerId) -> bool:
        """Does what this peer says of others count? Of anybody else's, nothing need be kept."""
        return not self._members or peer in self._members

    # ---- what the run says

    def _witnesses(self, told: Mapping[PeerId, Told]) -> list[Told]:
        begun = {peer: t for peer, t in told.items() if t.phase != "starting" and t.is_heeded}
        if told and not self._members & told.keys():
            self._members = frozenset()  # from the next look on everybody is heeded
        voters = {peer: t for peer, t in begun.items() if peer in self._members} or begun
        if not voters:
            return []
        steps = sorted((t.step for t in voters.values()), reverse=True)
        step = steps[len(steps) // 3]
        there = [t for _, t in sorted(voters.items()) if t.step == step]
        head = _most_common((t.head, t.num_stages) for t in there)
        return [t for t in there if (t.head, t.num_stages) == head]

    def _note_progress(self, step: int, tokens: int, now: float) -> None:
        if step != self._step:
            self._step, self._step_since = step, now
        self._tokens = max(self._tokens, tokens)
        self._done.append((now, self._tokens))
        while len(self._done) > 2 and now - self._done[1][0] >= WINDOW_S:
            self._done.popleft()

    def _rate(self) -> float | None:
        (first_at, first), (last_at, last) = self._done[0], self._done[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else None

    def _goodput(self, fresh: Mapping[PeerId, Sighting]) -> float | None:
        """Microbatches that count, as a share of those that were accumulated, of members that answer; all are of one size."""
        sums = Counter[str]()
        for peer in self._members & fresh.keys():
            for labels, value in fresh[peer].metrics.by("regrow_microbatches_total").items():
                sums[dict(labels).get("outcome", "")] += int(min(max(value, 0.0), 2.0**53))
        return min(1.0, sums["committed"] / sums["accumulated"]) if sums["accumulated"] else None

    def _stages(self, num_stages: int, roster: Roster, fresh: Mapping[PeerId, Sighting]) -> tuple[StageView, ...]:
        held: dict[int, dict[PeerId, str]] = {stage: {} for stage in range(num_stages)}
        for stage, peer, role in roster:
            if stage in held:
                held[stage][peer] = role
        views = []
        for stage, roles in held.items():
            active = sorted(peer for peer, role in roles.items() if role == "active")
            rates = [rate for peer in active if (rate := self._pace.rate(peer, _active_stages(roster, peer))) is not None]
            coefficients = _coefficients(stage, [fresh[peer].told for peer in active if peer in fresh])
            replicas: dict[str, int] = {role: sum(r == role for r in roles.values()) for role in ROLES}
            views.append(StageView(stage, replicas, not active, sum(rates) if rates else None, coefficients))
        return tuple(views)


class Recoveries:
    """Stages that came back, by rung. Each node counts those that it decided, since its start; when it goes, sums stay."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = dict.fromkeys(LADDER, 0)
        self._counted: dict[tuple[PeerId, int, str], int] = {}

    def note(self, members: Mapping[PeerId, Sighting], step: int) -> None:
        """A member cannot have seen more stages come back than there are stages and steps."""
        for peer, seen in sorted(members.items()):
            assert seen.told is not None, "members that answered"
            for rung in LADDER:
                key = (peer, seen.told.incarnation, rung)
                known = self._counted.pop(key, 0)
                value = seen.metrics.value("regrow_recoveries_total", rung=rung) or 0.0
                count = int(min(max(value, 0.0), (step + 1.0) * MAX_STAGES))
                self.totals[rung] += max(0, count - known)
                if count or known:
                    self._counted[key] = max(count, known)
        while len(self._counted) > MAX_REMEMBERED:
            del self._counted[next(iter(self._counted))]


def labels_of(peers: Iterable[PeerId]) -> dict[PeerId, str]:
    """How each is called: by the end of its id, unless two have the same."""
    all_of_them = sorted(set(peers))
    ends = Counter(peer[-SUFFIX_CHARS:] for peer in all_of_them)
    return {peer: peer[-SUFFIX_CHARS:] if ends[peer[-SUFFIX_CHARS:]] == 1 else peer for peer in all_of_them}


def _nodes(
    sightings: Sequence[Sighting],
    fresh: Mapping[PeerId, Sighting],
    members: frozenset[PeerId],
    step: int | None,
    pace: Pace,
    now: float,
) -> tuple[NodeView, ...]:
    labels, suspected = labels_of(s.lease.peer for s in sightings), _suspected(fresh, members)
    views = []
    for seen in sorted(sightings, key=lambda s: s.lease.peer):
        lease, peer = seen.lease, seen.lease.peer
        told = seen.told if peer in fresh else None
        is_member = peer in members
        state: NodeState = "suspected" if peer in suspected else "live" if told else "unreachable"
        claim: LeaseState = "leaving" if lease.leaving else "seated" if is_member else "claimed" if lease.stages else "spare"
        own = told.contribution if told else None
        views.append(
            NodeView(
                peer=peer,
                label=labels[peer],
                name=printable(lease.name, 64),
                state=state,
                lease=claim,
                stages=lease.stages,
                incarnation=lease.incarnation,
                seen_s=now - seen.told_at if seen.told else None,
                version=printable(told.version, 32) if told else "",
                phase=told.phase if told else "",
                sentence=printable(told.sentence, 300) if told else "",
                step=told.step if told else None,
                share=own.share if own else None,
                offset_s=seen.offset_s if told else None,
                step_seconds=pace.step_seconds(peer) if told else None,
            )
        )
    return tuple(views)


def _suspected(fresh: Mapping[PeerId, Sighting], members: frozenset[PeerId]) -> set[PeerId]:
    """Peers of whom more members that watch them say that they are silent than that they live."""
    votes = Counter[PeerId]()
    for peer in members & fresh.keys() if members else fresh.keys():
        told = fresh[peer].told
        for row in told.view if told else ():
            votes[row.peer] += {"lapsed": 1, "live": -1}.get(row.phase, 0)
    return {peer for peer, vote in votes.items() if vote > 0}


def _active_stages(roster: Roster, peer: PeerId) -> list[int]:
    return sorted(stage for stage, holder, role in roster if holder == peer and role == "active")


def _coefficients(stage: int, holders: Iterable[Told | None]) -> dict[int, float]:
    """Of the newest rebuild that a holder tells."""
    found = [
        seat.provenance
        for told in holders
        if told is not None
        for seat in told.seats
        if seat.stage == stage and seat.provenance.rung == "recovery" and seat.provenance.sources
    ]
    newest = max(found, key=lambda p: p.step, default=None)
    return {source.stage: source.coefficient for source in newest.sources} if newest else {}


def _bottleneck(stages: Sequence[StageView]) -> int | None:
    """The slowest stage, once all that have replicas are known."""
    held = [stage for stage in stages if not stage.lost]
    if not held or any(stage.throughput is None for stage in held):
        return None
    return min(held, key=lambda s: (s.throughput or 0.0, s.stage)).stage


def _loss(witnesses: Sequence[Told]) -> float | None:
    losses = [t.loss for t in witnesses if t.loss is not None]
    return _median(losses) if losses else None


def _validation(witnesses: Sequence[Told]) -> tuple[int, float] | None:
    """Of the newest evaluation that more than a third of those who know of one have heard of."""
    found = sorted(((t.validation.step, t.validation.loss) for t in witnesses if t.validation), reverse=True)
    if not found:
        return None
    step = found[len(found) // 3][0]
    return step, _median([loss for at, loss in found if at == step])


def _median(values: Sequence[T]) -> T:
    """One of the values, so that it was really told."""
    return statistics.median_low(values)  # type: ignore[type-var]


def _most_common(values: Iterable[T], key: Callable[[T], str] = repr) -> T:
    """The smallest of the most common."""
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], key(value)))

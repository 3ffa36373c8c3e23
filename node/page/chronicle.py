"""What happened, in plain words: notes of the node become entries with serials, in bounded room.

An entry is `{"serial", "wall", "kind", "level", "step", "text"}`, and where they apply `stage`, `peer`, `peers` (last
characters of their ids), `sources` (stages and coefficients), `count` (how often in a row) and `replaces` (the serial of the
entry that it takes the place of). Texts are fit to be published.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from node.page.words import Name, listed, made_of, provenance, public, short, took
from protocol.ids import PeerId, members_of
from protocol.sizes import human_bytes

MAX_ENTRIES = 200
MAX_PEERS = 8
Entry = dict[str, Any]
Fields = Mapping[str, Any]

LEVELS = {
    "lost": "bad",
    "save_failed": "warn",
    "restore_failed": "warn",
    "digest_mismatch": "bad",
    "forked": "bad",
    "refused": "warn",
    "uncounted": "warn",
    "suspected": "warn",
    "rolled_back": "warn",
    "recovered": "good",
    "counted": "good",
    "heard": "good",
}
_PEER = re.compile("\0([^\0]*)\0")
SILENT_NOTES = frozenset("accumulated reduced decided counted validation saved shadow granted placed candidate".split())
"""What is routine, or told by another note."""
_ROLES = {"active": "computes", "passive": "keeps a copy of", "learner": "copies", "parked": "keeps, without computing it,"}


class Chronicle:
    """Fed with notes in order. `name` says how people call a peer, `is_held` whether anybody has the stage now."""

    def __init__(
        self, wall: Callable[[], float], name: Name, me: PeerId, is_held: Callable[[int], bool], limit: int = MAX_ENTRIES
    ) -> None:
        self._wall, self._named, self._me, self._is_held = wall, name, me, is_held
        name = self._name
        self._entries: deque[Entry] = deque(maxlen=limit)
        self._serial = 0
        self._rebuilds: dict[int, Fields] = {}
        self._is_counted = False
        self._silent: frozenset[PeerId] = frozenset()
        self._tellers: dict[str, Callable[[Fields], str]] = {
            "joined": self._joined,
            "left": self._left,
            "lost": self._lost,
            "suspected": lambda f: (
                f"{self._who(f)} is suspected: {name(f['by'])} does not hear it ({public(f['reason'], 120)})."
            ),
            "promoted": lambda f: f"{self._who(f)} had an exact copy of stage {f['stage']} and computes it from now on.",
            "recovered": self._recovered,
            "provenance": self._provenance,
            "averaged": lambda f: f"This node averaged its share of stage {f['stage']} in {took(f['average_s'])}.",
            "transfer": self._transfer,
            "voided": lambda f: f"Step {f['step']} is run again: {public(f['reason'], 140).rstrip('.…')}.",
            "rerouted": self._rerouted,
            "moved": lambda f: f"{self._who(f)} moves from stage {f['stage']} to stage {f['to']}.",
            "took_over": lambda f: f"This node coordinates the run now, after {name(f['from'])}.",
            "forked": lambda f: f"Without a quorum this node and {len(f['peers']) - 1} others went on by themselves.",
            "yielded": lambda f: f"This node gave up its lineage, and all state, for that of {name(f['to'])}.",
            "caught_up": lambda f: f"This node had missed too much, and goes on from step {f['step']}.",
            "rolled_back": self._rolled_back,
            "save_failed": lambda f: f"Stage {f['stage']} could not be saved: {public(f['reason'], 200)}.",
            "restore_failed": lambda f: f"Stage {f['stage']} could not be read back: {public(f['reason'], 200)}.",
            "digest_mismatch": lambda f: f"{self._who(f)} holds other weights of stage {f['stage']} than its siblings.",
            "refused": lambda f: f"Something from {self._who(f)} was refused: {public(f['reason'], 200)}.",
            "uncounted": lambda f: f"Step {f['step']} does not count what this node computed of stage {f['stage']}.",
            "evaluation_skipped": lambda f: f"The evaluation was skipped: {public(f['reason'], 120)}.",
            "shadow_sealed": lambda f: (
                f"What this node kept of stage {f['stage']} is {'whole' if f['whole'] else 'not whole'}."
            ),
        }

    # ---- in

    def note(self, type_: str, fields: Fields) -> None:
        """One note. What is routine, or of no interest to people, makes no entry."""
        if type_ == "rebuild":
            self._rebuilds[int(fields["stage"])] = fields
        elif type_ == "loss":
            for stage, rebuild in tuple(self._rebuilds.items()):
                self._rebuilt(stage, rebuild, "")
        elif type_ == "committed":
            self._committed(fields)
        elif type_ == "joined" and int(fields["stage"]) in self._rebuilds and fields["role"] == "active":
            self._rebuilt(int(fields["stage"]), self._rebuilds[int(fields["stage"])], str(fields["peer"]))
        elif type_ in self._tellers:
            text = self._tellers[type_](fields)
            kind = "lost" if type_ == "left" and "peer" in fields and not self._is_held(int(fields["stage"])) else type_
            if text:
                self._tell(kind, text, fields)

    def silent(self, peers: Iterable[PeerId], stages_of: Callable[[PeerId], list[int]], step: int) -> None:
        """Peers from which this node has heard nothing for a lapse: who is new among them, and who is heard again."""
        now = frozenset(peers)
        for peer in sorted(now - self._silent):
            held = stages_of(peer)
            at = f" (stage {listed(held)})" if held else ""
            where = {"peer": peer, "step": step} | ({"stage": held[0]} if held else {})
            self._tell("suspected", f"Nothing is heard of {self._name(peer)}{at}: it is suspected.", where)
        for peer in sorted(self._silent - now):
            if stages_of(peer):
                self._tell("heard", f"{self._name(peer)} is heard again.", {"peer": peer, "step": step})
        self._silent = now

    def is_silent(self, peer: PeerId) -> bool:
        """Was it at the last look?"""
        return peer in self._silent

    # ---- out

    def latest(self, after: int = 0, most: int = MAX_ENTRIES) -> list[Entry]:
        """The newest entries whose serial is higher, oldest first."""
        found = [entry for entry in self._entries if entry["serial"] > after][-most:] if most > 0 else []
        return [entry | {"text": _PEER.sub(lambda peer: self._named(peer[1]), entry["text"])} for entry in found]

    @property
    def serial(self) -> int:
        """Of the newest entry; 0 = none."""
        return self._serial

    # ---- inside

    def _tell(self, kind: str, text: str, fields: Fields) -> None:
        self._serial += 1
        entry: Entry = {"serial": self._serial, "wall": self._wall(), "kind": kind, "level": LEVELS.get(kind, "info")}
        entry |= {"step": int(fields.get("step", 0)), "text": text}
        if isinstance(fields.get("stage"), int):
            entry["stage"] = fields["stage"]
        if fields.get("peer"):
            entry["peer"] = short(str(fields["peer"]))
        if fields.get("peers"):
            entry["peers"] = [short(str(peer)) for peer in fields["peers"]][:MAX_PEERS]
        if fields.get("sources") and isinstance(fields["sources"][0], Mapping):
            entry["sources"] = [{"stage": s["stage"], "coefficient": s["coefficient"]} for s in fields["sources"]]
        before = self._entries[-1] if self._entries else None
        if before and (before["kind"], before["text"]) == (kind, text):
            entry |= {"count": before.get("count", 1) + 1, "replaces": before["serial"]}
            self._entries.pop()
        self._entries.append(entry)

    @staticmethod
    def _name(peer: PeerId) -> str:
        """Stands for the peer until somebody reads: who has just come is named a little later."""
        return f"\0{peer}\0"

    def _who(self, fields: Fields) -> str:
        return self._name(str(fields.get("peer", "")))

    def _joined(self, f: Fields) -> str:
        return f"{self._who(f)} {_ROLES.get(f['role'], 'has')} stage {f['stage']}."

    def _left(self, f: Fields) -> str:
        if "peer" not in f:
            return f"This node does not hold stage {f['stage']} any more: {public(f['reason'], 200)}."
        if self._is_held(int(f["stage"])):
            return f"{self._who(f)} does not hold stage {f['stage']} any more."
        return f"Stage {f['stage']} lost its last holder, {self._who(f)}."

    def _lost(self, f: Fields) -> str:
        silent = f" after {took(f['silent_s'])} of silence" if f.get("silent_s") else ""
        return f"{self._who(f)} (stage {f['stage']}) was given up{silent}."

    def _rebuilt(self, stage: int, f: Fields, peer: PeerId) -> None:
        self._rebuilds.pop(stage, None)
        to = f"; handed to {self._name(peer)}" if peer else ""
        self._tell("rebuild", f"Stage {stage} is rebuilt from {made_of(f, self._name)}{to}.", {**f, "peer": peer})

    def _recovered(self, f: Fields) -> str:
        parts = [
            ("silence", "detect_s"),
            ("grace", "grace_s"),
            ("waiting for a node", "wait_for_newcomer_s"),
            ("first commit", "first_commit_s"),
        ]
        told = [f"{word} {took(f[key])}" for word, key in parts if f.get(key, 0.0) >= 0.05]
        after = f" ({', '.join(told)})" if told else ""
        return f"Stage {f['stage']} trains again at {self._who(f)}, by {str(f['rung']).replace('_', ' ')}{after}."

    def _provenance(self, f: Fields) -> str:
        return f"This node's stage {f['stage']} is ready: {provenance(int(f['stage']), f, self._name)}."

    def _transfer(self, f: Fields) -> str:
        givers = listed([self._name(peer) for peer in f["from"]][:4]) if isinstance(f["from"], list) else self._name(f["from"])
        return f"{str(f['what']).capitalize()} came from {givers}: {human_bytes(f['bytes'])} in {took(f['s'])}."

    def _rerouted(self, f: Fields) -> str:
        count = sum(len(members_of(bits)) for bits in f["to"].values())
        takers = listed([self._name(peer) for peer in f["to"]][:4])
        return f"{count} microbatches of {self._who(f)} at stage {f['stage']} go through {takers} instead."

    def _rolled_back(self, f: Fields) -> str:
        return f"Everybody went back from step {f['from_step']} to step {f['step']}: stage {listed(f['stages'])} was lost."

    def _committed(self, f: Fields) -> None:
        if not self._is_counted and members_of(f.get("contributors", {}).get(self._me, "0")):
            self._is_counted = True
            self._tell("counted", f"This node's work is in the run's weights since step {f['step']}.", f)

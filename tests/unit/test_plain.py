"""Events and commands as JSON."""

from __future__ import annotations

import json

from protocol.commands import SendPayload
from protocol.events import MessageReceived
from protocol.ids import Ballot
from protocol.messages import Hop, PipeHeader, Route
from protocol.messages import VoidStep as Void
from protocol.plain import to_plain


def test_every_level_names_its_class_and_no_field_is_lost() -> None:
    header = PipeHeader(Ballot(2, "a"), 3, 1, "ff", "forward", 1, Route(5, (Hop(0, "a"), Hop(1, "b")), 3))
    plain = json.loads(json.dumps(to_plain(SendPayload("b", header, 9))))
    assert plain["$"] == "SendPayload"
    assert plain["header"]["$"] == "PipeHeader"
    assert plain["header"]["kind"] == "forward"
    assert plain["header"]["route"]["hops"][1] == {"$": "Hop", "stage": 1, "peer": "b"}
    assert plain["header"]["route"]["amendment"] == 3


def test_messages_inside_events() -> None:
    plain = to_plain(MessageReceived("a", 1, Void(Ballot(1, "a"), 4, 2, "late")))
    assert plain["message"] == {
        "$": "VoidStep",
        "ballot": {"$": "Ballot", "term": 1, "peer": "a"},
        "step": 4,
        "attempt": 2,
        "reason": "late",
    }

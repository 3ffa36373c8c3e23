"""Tickets: whom they admit, that each field is signed, that what a lease shows helps nobody else, and what garbage does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from node.admission import OWN_DAYS, Shown, judge_of, shown, shown_by_founder
from node.keys import OrganiserKey, proof_of, sign_bearer_ticket, sign_manifest, sign_order, sign_ticket, verify
from node.ports import Lease, UnusableError
from protocol.manifest import Manifest, from_mapping
from protocol.orders import signed_bytes
from protocol.tickets import MAX_CHARS, Ticket, decode, encode, is_over, proof_refusal, refusal
from tests.tools.clock import StepClock
from tests.tools.core import a_manifest

ANNA = "QmNnooDu7bfjPFoTZYxMNLWUQJyrVwtbZg5gBMjTezGAJN"
BOB = "QmQCU2EcMqAqQPR2i9bChDtGNJchTbq5TbXJJ16u19uLTa"
NOW, SERIAL, EXPIRES = 1000.0, 7, 2000


@pytest.fixture
def key(tmp_path: Path) -> OrganiserKey:
    return OrganiserKey.create(tmp_path / "organiser.key")


@pytest.fixture
def run(key: OrganiserKey) -> Manifest:
    return from_mapping(a_manifest().model_dump() | {"admission": "invited", "organiser": key.public})


def lease(peer: str, ticket: str) -> Lease:
    return Lease(peer, 1, "", "127.0.0.1:1", "", (), 0, False, False, 1e9, ticket)


def carried(text: str, run: Manifest, peer: str) -> Shown:
    return shown(text, run.run_id, run.organiser, peer, NOW)


def test_a_ticket_admits_its_peer_and_nobody_else(key: OrganiserKey, run: Manifest) -> None:
    text, judge = sign_ticket(key, run.run_id, ANNA, SERIAL, EXPIRES), judge_of(run, StepClock(NOW))
    own = carried(text, run, ANNA)
    assert own.flaw == ""
    assert judge(lease(ANNA, own.text)) == ""
    assert f"is for peer {ANNA}, not for {BOB}" in judge(lease(BOB, own.text)), "replayed"
    assert judge(lease(ANNA, "")) == "this run is by invitation; ask its organiser for a ticket"
    assert "is for peer" in carried(text, run, BOB).flaw


def test_a_bearer_ticket_admits_many_but_not_who_reads_a_lease(key: OrganiserKey, run: Manifest) -> None:
    text, judge = sign_bearer_ticket(key, run.run_id, SERIAL, EXPIRES), judge_of(run, StepClock(NOW))
    passes = {peer: carried(text, run, peer).text for peer in (ANNA, BOB)}
    assert [judge(lease(peer, passes[peer])) for peer in passes] == ["", ""]
    assert "its bearer has not signed for it" in judge(lease(BOB, passes[ANNA])), "copied from the directory"
    _, secret = decode("ticket", text)
    assert secret
    assert secret not in passes[ANNA]
    ticket, _ = decode("pass", passes[ANNA])
    forged = encode("pass", ticket, proof_of("11" * 32, run.run_id, BOB))
    assert "its bearer has not signed" in judge(lease(BOB, forged))
    assert "has not signed" in judge(lease(BOB, encode("pass", ticket, proof_of(secret, "other-" + "0" * 16, BOB))))


def test_expiry(key: OrganiserKey, run: Manifest) -> None:
    clock = StepClock(NOW)
    judge, text = judge_of(run, clock), sign_ticket(key, run.run_id, ANNA, SERIAL, EXPIRES)
    showing = lease(ANNA, carried(text, run, ANNA).text)
    assert judge(showing) == ""
    clock.now = EXPIRES - 0.5
    assert judge(showing) == ""
    clock.now = EXPIRES
    assert "your ticket has expired" in judge(showing)
    assert "has expired" in shown(text, run.run_id, run.organiser, ANNA, EXPIRES).flaw
    assert is_over(EXPIRES, EXPIRES)


def test_an_open_run_ignores_tickets(run: Manifest) -> None:
    judge = judge_of(from_mapping(run.model_dump() | {"admission": "open"}), StepClock(NOW))
    assert [judge(lease(ANNA, text)) for text in ("", "nonsense")] == ["", ""]


def test_each_field_is_signed(key: OrganiserKey, run: Manifest, tmp_path: Path) -> None:
    good, _ = decode("ticket", sign_ticket(key, run.run_id, ANNA, SERIAL, EXPIRES))
    assert refusal(good, run.run_id, key.public, ANNA, verify) == ""
    for changed in (
        replace(good, serial=8),
        replace(good, expires=EXPIRES + 1),
        replace(good, peer=BOB),
        replace(good, peer="", bearer=key.public),
        replace(good, run_id="other-" + "0" * 16),
    ):
        for_peer = changed.peer or ANNA
        assert "not signed" in refusal(changed, changed.run_id, key.public, for_peer, verify)
    assert "is for run" in refusal(good, "other-" + "0" * 16, key.public, ANNA, verify)
    stranger = OrganiserKey.create(tmp_path / "stranger.key")
    foreign, _ = decode("ticket", sign_ticket(stranger, run.run_id, ANNA, SERIAL, EXPIRES))
    assert "not signed" in refusal(foreign, run.run_id, key.public, ANNA, verify)
    assert "not signed" in refusal(good, run.run_id, "", ANNA, verify), "a run without an organiser invites nobody"


def test_no_other_signature_of_the_organiser_is_a_ticket(key: OrganiserKey, run: Manifest) -> None:
    empty = Ticket(run.run_id, ANNA, "", SERIAL, EXPIRES)
    order = sign_order(key, run.run_id, "stop", SERIAL).signature
    for signature in (order, sign_manifest(key, empty.signed_bytes()), key.sign(signed_bytes(run.run_id, ANNA, SERIAL))):
        assert "not signed" in refusal(replace(empty, signature=signature), run.run_id, key.public, ANNA, verify)


def test_a_bearer_ticket_without_a_proof_is_not_read(key: OrganiserKey, run: Manifest) -> None:
    ticket, _ = decode("ticket", sign_bearer_ticket(key, run.run_id, SERIAL, EXPIRES))
    assert "has not signed" in proof_refusal(ticket, "", ANNA, verify)
    with pytest.raises(ValueError, match="contents are wrong"):
        encode("pass", ticket, "")


@pytest.mark.parametrize(
    "text", ["", "x", "regrow-pass1:", "regrow-pass1:" + "." * 7, "regrow-pass1:" + "[" * 600, "9" * 10_000]
)
def test_nonsense_in_a_lease_is_refused_not_raised(run: Manifest, text: str) -> None:
    why = judge_of(run, StepClock(NOW))(lease(ANNA, text))
    assert why.startswith("this run is by invitation")
    assert "\n" not in why


def test_every_change_of_a_character_is_noticed(key: OrganiserKey, run: Manifest, seed: int) -> None:
    text, rng = sign_bearer_ticket(key, run.run_id, SERIAL, EXPIRES), Random(seed)
    assert len(text) <= MAX_CHARS
    assert decode("ticket", f" {text[:100]}\n  {text[100:]}\n") == decode("ticket", text), "as pasting breaks it"
    for place in range(len(text)):
        other = rng.choice([c for c in "0123456789abcdefQ.-:é" if c != text[place]])
        with pytest.raises(ValueError, match="ticket"):
            decode("ticket", text[:place] + other + text[place + 1 :])
    for length in range(len(text)):
        with pytest.raises(ValueError, match="ticket"):
            decode("ticket", text[:length])
    with pytest.raises(UnusableError, match="--ticket: the ticket is mistyped") as caught:
        carried(text[:-1], run, ANNA)
    assert caught.value.code == 2


def test_the_founder_writes_its_own(key: OrganiserKey, run: Manifest, tmp_path: Path) -> None:
    clock = StepClock(NOW)
    own = shown_by_founder("", run, key, ANNA, NOW)
    assert judge_of(run, clock)(lease(ANNA, own.text)) == ""
    clock.now += (OWN_DAYS - 1) * 24 * 3600
    assert judge_of(run, clock)(lease(ANNA, own.text)) == ""
    stranger = OrganiserKey.create(tmp_path / "stranger.key")
    for held in (None, stranger):
        with pytest.raises(UnusableError, match="the organiser's key is not in this state directory"):
            shown_by_founder("", run, held, ANNA, NOW)
        given = sign_ticket(key, run.run_id, ANNA, SERIAL, EXPIRES)
        assert judge_of(run, StepClock(NOW))(lease(ANNA, shown_by_founder(given, run, held, ANNA, NOW).text)) == ""
    assert shown_by_founder("", from_mapping(run.model_dump() | {"admission": "open"}), None, ANNA, NOW) == Shown()

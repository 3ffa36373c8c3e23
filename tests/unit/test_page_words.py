"""What may be published, and how things are called."""

from __future__ import annotations

import pytest

from node.page.words import MAX_NAME_CHARS, made_of, mixture, named, provenance, public

SECRETS = {
    "stream to 10.1.2.3:28480 broke": "stream to (an address) broke",
    "ipv4:192.168.7.20:31338: refused": "(an address): refused",
    "ipv4:192.168.7.20%3A31338": "(an address)",
    "ipv6:[2001:db8::7]:443 timed out": "(an address) timed out",
    "ipv6:%5Bfe80::1%5D:443": "(an address)",
    "[::1]:28480 and 2001:db8:0:1::9": "(an address) and (an address)",
    "fe80::1%eth0 is silent": "(an address) is silent",
    "anna.example.org:28480 is away": "(an address) is away",
    "localhost:1234": "(an address)",
    "at http://me:pw@example.org/x?y=1 now": "at (an address) now",
    "/ip4/203.0.113.7/tcp/4000/p2p/QmAb is told": "(an address) is told",
    "/dns/example.org/tcp/1 too": "(an address) too",
    "join with regrow1:AbCd_-9= please": "join with (an invite) please",
    "cannot write /mnt/big disk/x: full": "cannot write (a path) disk/x: full",
    "[Errno 28] No space left on device: '/home/anna/.local/state/regrow/s'": "[Errno 28] No space left on device: '(a path)'",
    "~/data and C:\\Users\\anna\\x": "(a path) and (a path)",
    "s3://bucket/key: denied": "(an address) denied",
}
PLAIN = (
    "step 3/100, 12.5 tokens/s, .44 / .56 and 1:23",
    "stage 3 has no holder; waiting for a node (2 of 3 voters)",
    "at 14:13:08 on 2026-11-30",
    "generation 1: digest ab12cd34 differs",
)


@pytest.mark.parametrize("text", SECRETS)
def test_addresses_paths_and_invites_are_named_not_told(text: str) -> None:
    assert public(text) == SECRETS[text]


@pytest.mark.parametrize("text", PLAIN)
def test_other_text_stays(text: str) -> None:
    assert public(text) == text


def test_names_are_one_short_line() -> None:
    assert named("  anna ") == "anna"
    assert named("a\x1b[31m\nb\u202ec") == "a?[31m?b?c"
    assert named("שלום") == "שלום"
    assert len(named("x" * 10_000)) == MAX_NAME_CHARS
    assert named("10.0.0.1:80") == "(an address)"


def test_what_a_stage_is_made_of() -> None:
    two = [{"stage": 2, "coefficient": 0.4421}, {"stage": 4, "coefficient": 0.5579}]
    assert mixture(two) == "stages 2 and 4, .44 / .56"
    assert made_of({"stage": 3, "sources": two[:1]}, str) == "stage 2"
    assert made_of({"stage": 2, "sources": two[:1]}, str) == "its own older state"
    assert made_of({"stage": 2, "sources": []}, str) == "the seed, drawn anew"
    kept = {"keeper": "QmBert", "oldest_step": 7, "newest_step": 9}
    assert made_of({"stage": 2, "shadow": kept}, str) == "what QmBert kept of it, chunks of steps 7 to 9"


def test_how_the_weights_of_a_seat_came_to_be() -> None:
    moved = {"from": ["bert"], "bytes": 4_000_000, "transfer_s": 2.0}
    assert provenance(1, {"rung": "seed"}, str) == "made from the run's seed"
    told = provenance(1, {"rung": "copy", "state_id": "ab", "step": 7, **moved}, str)
    assert told == "copied from a living replica as of step 7; 4.0 MB from bert in 2.0 s (16 Mbit/s)"
    assert provenance(1, {"rung": "copy"}, str) == "being copied from a living replica"
    sources = [{"stage": 0, "coefficient": 1.0}]
    assert provenance(1, {"rung": "recovery", "step": 7, "sources": sources}, str) == "rebuilt from stage 0 as of step 7"
    for rung in ("promotion", "handover", "parked", "returned", "older_copy", "shadow", "checkpoint"):
        assert provenance(1, {"rung": rung, "step": 7}, str) != rung.replace("_", " ")

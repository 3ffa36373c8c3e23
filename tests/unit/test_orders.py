"""Orders and the organiser's key: who may say what, and once only."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from node.keys import OrganiserKey, order_verifier, sign_manifest, sign_order, verify, verify_manifest
from node.ports import UnusableError
from protocol.messages import Order
from protocol.orders import refusal

RUN = "demo-0123456789abcdef"


@pytest.fixture
def key(tmp_path: Path) -> OrganiserKey:
    return OrganiserKey.create(tmp_path / "organiser.key")


def test_a_signed_order_is_obeyed_once(key: OrganiserKey) -> None:
    order, check = sign_order(key, RUN, "pause", 7), order_verifier(key.public)
    assert refusal(order, RUN, 6, check) == ""
    assert "serial 7, which is not above 7" in refusal(order, RUN, 7, check)
    assert "serial 7, which is not above 9" in refusal(order, RUN, 9, check)


def test_what_must_not_be_obeyed(key: OrganiserKey, tmp_path: Path) -> None:
    order, check = sign_order(key, RUN, "stop", 3), order_verifier(key.public)
    stranger = sign_order(OrganiserKey.create(tmp_path / "other.key"), RUN, "stop", 3)
    for wrong in (
        stranger,
        replace(order, action="resume"),
        replace(order, serial=4),
        replace(order, signature=""),
        replace(order, signature="not hex"),
        replace(order, signature=order.signature[:-2]),
    ):
        assert "not signed by the run's organiser" in refusal(wrong, RUN, 0, check)
    assert "not signed" in refusal(order, "another-run", 0, check)
    assert "not signed" in refusal(order, RUN, 0, order_verifier("")), "a run without an organiser obeys nobody"
    assert "unknown" in refusal(Order("explode", 3, order.signature), RUN, 0, check)  # type: ignore[arg-type]


def test_a_huge_serial_would_end_all_orders(key: OrganiserKey) -> None:
    assert "serial" in refusal(sign_order(key, RUN, "stop", 2**60), RUN, 0, order_verifier(key.public))


def test_a_manifest_signature_is_no_order(key: OrganiserKey) -> None:
    signature = sign_manifest(key, b"{}")
    assert verify_manifest(key.public, b"{}", signature)
    assert not verify_manifest(key.public, b"{ }", signature)
    assert not verify(key.public, b"{}", signature)


def test_the_key_file(key: OrganiserKey) -> None:
    assert stat.S_IMODE(key.path.stat().st_mode) == 0o600
    assert OrganiserKey.load(key.path).public == key.public
    before = key.path.read_bytes()
    with pytest.raises(UnusableError, match="exists already and is not replaced"):
        OrganiserKey.create(key.path)
    assert key.path.read_bytes() == before
    assert [path.name for path in key.path.parent.iterdir()] == [key.path.name], "no temporary is left"


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(path.read_bytes()[:50]), "is truncated or no PEM key"),
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.chmod(0o644), "open to other users.*chmod 600"),
    ],
)
def test_a_broken_key_file_is_one_line(key: OrganiserKey, damage: object, why: str) -> None:
    damage(key.path)  # type: ignore[operator]
    with pytest.raises(UnusableError, match=why) as caught:
        OrganiserKey.load(key.path)
    assert caught.value.code == 2
    assert str(key.path) in str(caught.value)
    assert "\n" not in str(caught.value)

"""What the event loop reports of its own: shown with its traceback, unless it means nothing to anybody."""

from __future__ import annotations

import asyncio
import logging

import pytest

from node.compose import on_loop_error


@pytest.mark.parametrize(
    ("message", "shown"), [("Fatal error on SSL protocol", False), ("Task exception was never retrieved", True)]
)
def test_only_a_dropped_handshake_is_passed_over(message: str, shown: bool, caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(on_loop_error)
    with caplog.at_level(logging.WARNING):
        loop.call_exception_handler({"message": message, "exception": RuntimeError("the handler is closed")})
    loop.close()
    assert (message in caplog.text) == shown

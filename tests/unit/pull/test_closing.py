"""How long a subscriber waits for what it closes."""

from __future__ import annotations

import logging
import threading

import pytest

from pulsar_retry.pull import course
from pulsar_retry.pull.course import close_in_time
from pulsar_retry.pull.report import StopRequest
from pulsar_retry.runtime.clock import SYSTEM

FACTS = {"subscription": "billing", "topic": "orders"}
PATIENCE = 120.0


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "_GRACE", 0.0)
    monkeypatch.setattr(course, "_LOOK", 0.01)


def test_without_a_stop_it_waits() -> None:
    """Until somebody stops it, and does not want to wait."""
    answers, asked = threading.Event(), list[StopRequest | None]([None] * 3)

    def close() -> None:
        answers.wait(PATIENCE)

    def stop() -> StopRequest | None:
        return asked.pop(0) if asked else StopRequest("abandon", SYSTEM.monotonic() - 1, 0.0)

    close_in_time(close, stop, SYSTEM, FACTS)
    assert not asked
    answers.set()


def test_an_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody else is told."""

    def close() -> None:
        raise ValueError("no way")

    with caplog.at_level(logging.ERROR):
        close_in_time(close, lambda: None, SYSTEM, FACTS)
    assert "no way" in caplog.text


def test_without_another_thread_it_closes_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is at the end of a process."""

    def cannot(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    closed = list[threading.Thread]()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot)
        close_in_time(
            lambda: closed.append(threading.current_thread()), lambda: None, SYSTEM, FACTS
        )
    assert [threading.current_thread()] == closed

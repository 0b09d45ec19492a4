"""Batches are sent when somebody waits for a letter."""

from __future__ import annotations

import threading
from typing import Any

import _pulsar
import pytest

from pulsar_retry.consumer.handoff.batches import Batches

PATIENCE = 120.0


class Raw:
    """pulsar-client's producer; a flush ends when the test says so."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(0)
        self.threads: list[threading.Thread] = []

    def flush(self) -> None:
        """Wait for receipts."""
        self.threads.append(threading.current_thread())
        self.begun.release()
        assert self.may_end.acquire(timeout=PATIENCE)
        raise _pulsar.Timeout


def test_those_that_come_meanwhile_share_a_flush() -> None:
    """Nobody waits for it, and a failure of it is that of its letters."""
    raw = Raw()
    batches = Batches(raw, 0.01)
    batches.flush()
    assert raw.begun.acquire(timeout=PATIENCE)
    for _ in range(100):
        batches.flush()
    for _ in range(2):
        raw.may_end.release()
    assert raw.begun.acquire(timeout=PATIENCE)
    batches.close()
    assert len(raw.threads) == 2
    assert threading.current_thread() not in raw.threads


def test_without_a_thread_it_flushes_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is at the end of a process."""

    def cannot(_thread: Any) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    raw = Raw()
    raw.may_end.release()
    monkeypatch.setattr(threading.Thread, "start", cannot)
    Batches(raw, 0.01).flush()
    assert raw.threads == [threading.current_thread()]

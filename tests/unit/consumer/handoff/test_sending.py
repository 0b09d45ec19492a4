"""How letters are sent: what their receipts do, and the thread that takes outcomes."""

from __future__ import annotations

import logging
import queue
from typing import Any

import pytest

from pulsar_retry.consumer.handoff import sending


class Outcomes:
    """Stands for the extension module's outcomes: the first `take` has no memory."""

    def __init__(self) -> None:
        self.left = 1
        self.failures = [MemoryError("no memory")]

    def __len__(self) -> int:
        return self.left

    def take(self, *_: Any) -> tuple[list[str], list[Any]]:
        """Take what is left."""
        if self.failures:
            raise self.failures.pop()
        taken, self.left = ["flight"] * self.left, 0
        return taken, []

    give_up = wake = None


def test_the_thread_goes_on_if_outcomes_cannot_be_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise every later letter would fail by its time-out, although it is published."""
    monkeypatch.setattr(sending, "_IDLE_MS", 1)
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    outcomes = sending.NativeOutcomes(type("Module", (), {"Outcomes": Outcomes}), ended.put)
    outcomes.start()
    assert ["flight"] == ended.get(timeout=120)
    assert [("pulsar_retry", logging.ERROR)] == [record[:2] for record in caplog.record_tuples]

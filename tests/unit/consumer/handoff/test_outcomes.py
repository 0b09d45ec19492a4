"""The thread that takes the outcomes of letters that are handed off in C++."""

from __future__ import annotations

import logging
import queue

from pulsar_retry.consumer.handoff import native


class Outcomes:
    """Stands for the extension module's outcomes: the first `take` has no memory."""

    def __init__(self):
        self.left = 1
        self.failures = [MemoryError("no memory")]

    def __len__(self):
        return self.left

    def take(self, *_):
        if self.failures:
            raise self.failures.pop()
        taken, self.left = ["flight"] * self.left, 0
        return taken, []

    is_out = give_up = wake = None


def test_the_thread_goes_on_if_outcomes_cannot_be_taken(monkeypatch, caplog):
    """Otherwise every later letter would fail by its time-out, although it is published."""
    monkeypatch.setattr(native, "_IDLE_MS", 1)
    ended = queue.SimpleQueue()
    outcomes = native.NativeOutcomes(type("Module", (), {"Outcomes": Outcomes}), ended.put)
    outcomes.expect()
    assert ["flight"] == ended.get(timeout=120)
    assert [("pulsar_retry", logging.ERROR)] == [record[:2] for record in caplog.record_tuples]

"""Calls that are made at the same time."""

from __future__ import annotations

import threading
import time

import pulsar
import pytest

from pulsar_retry.runtime import worker
from pulsar_retry.runtime.worker import side_by_side

PATIENCE = 120.0


def test_none_waits_for_another() -> None:
    """Each waits until all have begun."""
    meeting = threading.Barrier(5)
    side_by_side([lambda: meeting.wait(PATIENCE)] * 5)


def test_all_are_called_although_one_fails() -> None:
    """The caller gets the error, after the others have ended."""
    called: list[int] = []

    def fails() -> None:
        raise ValueError("no answer")

    with pytest.raises(ValueError, match="no answer"):
        side_by_side([fails, *(lambda n=n: called.append(n) for n in range(50))])  # type: ignore[misc]
    assert sorted(called) == list(range(50))


def test_what_takes_too_long_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is told, and the process waits for it when it exits."""
    monkeypatch.setattr(worker, "_LEAST", 0.0)
    answers, ended = threading.Event(), threading.Event()

    def waits() -> None:
        assert answers.wait(PATIENCE)
        ended.set()

    with pytest.raises(pulsar.Timeout):
        side_by_side([waits, int], until=time.monotonic())
    assert False in {
        each.daemon for each in threading.enumerate() if each.name == "pulsar-retry-closing"
    }
    answers.set()
    assert ended.wait(PATIENCE)


def test_without_threads_they_are_called_in_order() -> None:
    """A broker in memory answers at once, and its tests need the order."""
    called: list[tuple[int, threading.Thread]] = []
    here = threading.current_thread()
    side_by_side(
        [lambda n=n: called.append((n, threading.current_thread())) for n in range(3)],  # type: ignore[misc]
        threads=False,
    )
    assert called == [(n, here) for n in range(3)]


def test_all_are_called_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is at the end of a process."""

    def cannot(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    called: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(worker.threading.Thread, "start", cannot)  # type: ignore[attr-defined]
        side_by_side([lambda: called.append(1)] * 3)
    assert called == [1, 1, 1]

"""The clock of tests: what is due happens in order, and nothing overtakes what is to happen now."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.testing import VirtualClock


def start(clock: VirtualClock, target: Callable[[], object]) -> threading.Thread:
    """Start a thread that the clock waits for."""
    thread = clock.thread(target=target, daemon=True)
    thread.start()
    return thread


def test_time_stands_still() -> None:
    """It begins on a day that never changes, and goes on when it is told to."""
    clock = VirtualClock()
    assert "2026-01-01T00:00:00+00:00" == clock.now().isoformat()
    clock.advance(timedelta(hours=30))
    assert "2026-01-02T06:00:00+00:00" == clock.now().isoformat()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1e6), max_size=20), st.floats(0, 2e6))
def test_what_is_due_happens_in_order_and_at_its_time(due: list[float], until: float) -> None:
    """All of it that is due by then, each with the clock at its very time."""
    clock, happened = VirtualClock(), []
    began = clock.monotonic()
    for when in due:
        clock.call_at(began + when, lambda: happened.append(clock.monotonic()))
    clock.advance(until)
    assert sorted(began + when for when in due if began + when <= began + until) == happened
    assert began + until == clock.monotonic()


def test_who_waits_lets_time_pass() -> None:
    """A test needs no thread that turns the clock."""
    clock = VirtualClock()
    began, real = clock.monotonic(), time.monotonic()
    clock.sleep(3600)
    assert not clock.event().wait(3600)
    lock = clock.lock()
    assert [True, False, False] == [
        lock.acquire(),
        lock.acquire(timeout=0),
        lock.acquire(timeout=3600),
    ]
    assert began + 3 * 3600 == clock.monotonic()
    assert time.monotonic() - real < 60


def test_sleepers_wake_in_order() -> None:
    """Whatever the order in which their threads begin."""
    clock, woken = VirtualClock(), []

    def sleeper(seconds: float) -> Callable[[], None]:
        def sleep() -> None:
            clock.sleep(seconds)
            woken.append(seconds)

        return sleep

    for seconds in (3, 1, 2):
        start(clock, sleeper(seconds))
    clock.advance(2.5)
    assert [1, 2] == woken
    clock.advance(1)
    assert [1, 2, 3] == woken


def test_nothing_overtakes_what_runs() -> None:
    """A thread that was woken has done its work before time goes on, however slow it is."""
    clock, log = VirtualClock(), []
    event = clock.event()

    def work() -> None:
        event.wait()
        time.sleep(0.05)  # real work, in no virtual time
        log.append(clock.monotonic())

    start(clock, work)
    began = clock.monotonic()
    clock.call_at(began + 1, event.set)
    clock.advance(100)
    assert [began + 1] == log


def test_a_lock_is_handed_over() -> None:
    """To who waits for it; a second release is an error, as of `threading.Lock`."""
    clock, log = VirtualClock(), []
    lock = clock.lock()
    lock.acquire()
    start(clock, lambda: log.append(lock.acquire(timeout=10)))
    clock.settle()
    lock.release()
    clock.settle()
    assert ([True], True) == (log, lock.locked())
    lock.release()
    with pytest.raises(RuntimeError, match="unlocked"):
        lock.release()


def test_a_condition_wakes_or_times_out() -> None:
    """As `threading.Condition` does, also in `wait_for`."""
    clock = VirtualClock()
    condition, log = clock.condition(), []

    def wait() -> None:
        with condition:
            log.append(condition.wait(5))
            log.append(condition.wait_for(lambda: len(log) > 5, 5))

    start(clock, wait)
    clock.advance(1)
    with condition:
        condition.notify_all()
    clock.advance(10)
    assert [True, False] == log
    with pytest.raises(RuntimeError, match="un-acquired"):
        condition.notify()
    with pytest.raises(RuntimeError, match="un-acquired"):
        condition.wait(1)


def test_a_wait_that_ended_early_does_not_move_the_clock() -> None:
    """Its time-out is forgotten."""
    clock = VirtualClock()
    event = clock.event()
    start(clock, lambda: event.wait(3600))
    clock.settle()
    event.set()
    began = clock.monotonic()
    clock.call_at(began + 1, lambda: None)
    assert began + 1 == clock.next_due()


def test_counted_work_holds_the_clock() -> None:
    """On another's thread, from the moment on at which it is handed over."""
    clock, log = VirtualClock(), []
    task = clock.counted(lambda: log.append(clock.monotonic()))
    began = clock.monotonic()
    timer = threading.Timer(0.05, task)
    timer.start()
    clock.advance(100)
    assert [began] == log


def test_a_stuck_thread_is_named() -> None:
    """Instead of a test that hangs."""
    clock = VirtualClock(patience=0.05)
    stuck = threading.Event()
    thread = clock.thread(target=stuck.wait, name="the-handler", daemon=True)
    thread.start()
    with pytest.raises(TimeoutError, match=r"still busy after 0\.05 s: the-handler"):
        clock.advance(1)
    stuck.set()


def test_a_wait_that_nothing_ends_is_an_error() -> None:
    """Instead of a test that hangs."""
    clock = VirtualClock(patience=0.05)
    with pytest.raises(TimeoutError, match="nothing is due"):
        clock.event().wait()


def test_a_handler_cannot_advance_the_clock() -> None:
    """It would wait for itself."""
    clock, errors = VirtualClock(), []

    def work() -> None:
        try:
            clock.advance(1)
        except RuntimeError as error:
            errors.append(str(error))

    start(clock, work)
    clock.settle()
    assert ["a handler cannot advance the clock that waits for it: use sleep()"] == errors


@pytest.mark.parametrize("bad", [-1, "1", None, float("nan")])
def test_a_bad_duration_is_refused(bad: Any) -> None:
    """Before anything happens."""
    with pytest.raises(pr.ConfigError, match="duration"):
        VirtualClock().advance(bad)

"""The timer that calls back later, without a broker and on a clock of the test's."""

from __future__ import annotations

import gc
import logging
import math
import threading
import weakref
from collections.abc import Iterator

import pytest

from pulsar_retry.runtime import clock as module
from pulsar_retry.runtime.clock import Clock, Timer
from support.waiting import eventually


class Owner:
    """Somebody who wants to be called."""

    def __init__(self) -> None:
        self.calls = 0
        self._changed = threading.Condition()

    def check(self) -> None:
        with self._changed:
            self.calls += 1
            self._changed.notify_all()

    def wait_for(self, calls: int) -> None:
        """Wait until it was called so often, and not more often."""
        with self._changed:
            self._changed.wait_for(lambda: self.calls >= calls, 120)
            assert calls == self.calls


class SetClock(Clock):
    """A clock that a test sets; the timer looks at it whenever it wakes."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds


class Rig:
    """A timer on a clock of its own."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.timer = Timer(self.clock)
        self.owner = Owner()

    def at(self, seconds: float) -> None:
        """Let it be *seconds* after the start."""
        self.clock.seconds = 1000.0 + seconds
        with self.timer._changed:
            self.timer._changed.notify_all()

    def all_are_called(self) -> None:
        """Wait until the timer has called everybody whom it takes for due."""
        for _ in range(2):  # the second one in another round
            self.timer.check_later(mark := Owner(), 0)
            mark.wait_for(1)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """Give a timer whose thread does not linger for long."""
    monkeypatch.setattr(module, "_LINGER", 0.01)
    rig = Rig()
    yield rig
    rig.timer.close()


def test_owners_are_called_when_they_are_due(rig: Rig) -> None:
    """Not a moment earlier, and each for itself."""
    late = Owner()
    rig.timer.check_later(late, 20)
    rig.timer.check_later(rig.owner, 10)
    rig.at(9.999)
    rig.all_are_called()
    rig.owner.wait_for(0)
    rig.at(10)
    rig.all_are_called()
    rig.owner.wait_for(1)
    late.wait_for(0)
    rig.at(20)
    late.wait_for(1)


def test_the_earliest_call_asked_for_counts(rig: Rig) -> None:
    """There is one at a time; the thread that waits for a late one is woken for it."""
    rig.timer.check_later(rig.owner, 3600)
    rig.timer.check_later(rig.owner, 5)
    rig.timer.check_later(rig.owner, 60)
    rig.at(5)
    rig.owner.wait_for(1)
    rig.at(7200)
    rig.timer.check_later(other := Owner(), 0)
    other.wait_for(1)
    rig.owner.wait_for(1)


def test_an_owner_may_ask_again_while_it_is_called(rig: Rig) -> None:
    """Which is how it waits for more than one thing."""

    class Again(Owner):
        def check(self) -> None:
            super().check()
            if self.calls < 3:
                rig.timer.check_later(self, 0)

    again = Again()
    rig.timer.check_later(again, 0)
    again.wait_for(3)


def test_an_owner_that_is_gone_is_forgotten(rig: Rig) -> None:
    """The timer keeps nobody alive, neither before nor after a call."""
    gone, called = Owner(), Owner()
    rig.timer.check_later(called, 0)
    called.wait_for(1)
    rig.timer.check_later(gone, 5)
    rig.timer.check_later(rig.owner, 0)
    rig.owner.wait_for(1)  # the thread has returned from the one before
    references = weakref.ref(gone), weakref.ref(called)
    del gone, called
    gc.collect()
    assert (None, None) == (references[0](), references[1]())
    rig.timer.check_later(rig.owner, 5)
    rig.at(5)
    rig.owner.wait_for(2)


def test_one_owners_trouble_is_not_the_others(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the others are called."""

    class Broken:
        def check(self) -> None:
            raise RuntimeError("broken")

    broken = Broken()
    rig.timer.check_later(broken, 0)
    rig.timer.check_later(rig.owner, 0)
    rig.owner.wait_for(1)
    assert [logging.WARNING] == [each.levelno for each in caplog.records]


def test_no_thread_runs_while_nothing_is_awaited(rig: Rig) -> None:
    """It starts with the first call, ends some time after the last, and starts again."""
    assert rig.timer._thread is None
    for calls in (1, 2):
        rig.timer.check_later(rig.owner, 0)
        thread = rig.timer._thread
        eventually(lambda thread=thread: thread is None or not thread.is_alive())
        rig.owner.wait_for(calls)
    assert rig.timer._thread is None


def test_one_thread_serves_all(rig: Rig) -> None:
    """However many owners there are."""
    owners = [Owner() for _ in range(100)]
    for owner in owners:
        rig.timer.check_later(owner, 60)
    names = [thread.name for thread in threading.enumerate()]
    assert 1 == names.count("pulsar-retry-timer")
    rig.at(60)
    for owner in owners:
        owner.wait_for(1)


def test_discarding_the_last_ends_the_thread(rig: Rig) -> None:
    """It does not stay for the ten days that somebody had to wait."""
    rig.timer.check_later(rig.owner, 864_000)
    thread = rig.timer._thread
    assert thread is not None
    eventually(lambda: rig.timer._changed._waiters)  # before that it would see the discard anyway
    rig.timer.discard(rig.owner)
    thread.join(120)
    assert (False, None) == (thread.is_alive(), rig.timer._thread)


def test_what_is_discarded_is_not_called(rig: Rig) -> None:
    """But others are."""
    other = Owner()
    rig.timer.check_later(rig.owner, 5)
    rig.timer.check_later(other, 5)
    rig.timer.discard(rig.owner)
    rig.timer.discard(Owner())
    rig.at(5)
    rig.all_are_called()
    other.wait_for(1)
    rig.owner.wait_for(0)


@pytest.mark.parametrize("delay", [math.inf, 1e300, threading.TIMEOUT_MAX])
def test_an_endless_delay_is_not_the_others_trouble(rig: Rig, delay: float) -> None:
    """The thread lives on."""
    rig.timer.check_later(never := Owner(), delay)
    rig.timer.check_later(rig.owner, 0)
    rig.all_are_called()
    rig.owner.wait_for(1)
    never.wait_for(0)


@pytest.mark.parametrize("delay", [math.nan, -math.inf, -5])
def test_a_delay_that_is_none_means_now(rig: Rig, delay: float) -> None:
    """Also beside what is far away."""
    rig.timer.check_later(Owner(), 3600)
    rig.timer.check_later(rig.owner, delay)
    rig.owner.wait_for(1)


def test_a_thread_that_cannot_start_is_tried_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks next takes the earlier call along, also if it is the same one."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            rig.timer.check_later(rig.owner, 0)
        rig.timer.discard(Owner())
    rig.timer.check_later(rig.owner, 5)
    rig.owner.wait_for(1)


def test_closing_ends_the_thread(rig: Rig) -> None:
    """At once, whatever is awaited; later calls are forgotten, and closing twice is fine."""
    rig.timer.check_later(rig.owner, 3600)
    thread = rig.timer._thread
    assert thread is not None
    rig.timer.close()
    rig.timer.close()
    rig.timer.check_later(rig.owner, 0)
    assert (False, None, 0) == (thread.is_alive(), rig.timer._thread, rig.owner.calls)


def test_an_owner_may_close_the_timer(rig: Rig) -> None:
    """The thread does not wait for itself."""

    class Closer:
        def check(self) -> None:
            rig.timer.close()

    closer = Closer()
    rig.timer.check_later(closer, 0)
    eventually(lambda: rig.timer._closed and rig.timer._thread is None)

"""The timer of negative acknowledgements: what comes back when, without a broker and a clock."""

from __future__ import annotations

import gc
import heapq
import logging
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsar_retry.consumer import nacks
from pulsar_retry.consumer.clock import Clock
from pulsar_retry.consumer.nacks import CLIENT_DELAY_MS, NackTimer

LEAD = CLIENT_DELAY_MS / 1000

pytestmark = pytest.mark.timeout(60)


class Owner:
    """A consumer whose messages come back."""

    def __init__(self) -> None:
        self.back: list[Any] = []
        self._changed = threading.Condition()

    def _redeliver(self, message_id: Any, *, letter: bool) -> None:
        with self._changed:
            self.back.append((message_id, "letter") if letter else message_id)
            self._changed.notify_all()

    def wait_for(self, *expected: Any) -> None:
        """Wait until these are back, in this order and nothing else."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.back) >= len(expected), 20)
            assert [*expected] == self.back


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
        self.timer = NackTimer(self.clock)
        self.owner = Owner()

    def nack(self, message_id: Any, delay: float, *, letter: bool = False) -> None:
        """Have a message of the one owner come back."""
        self.timer.add(self.owner, message_id, delay, letter=letter)

    def at(self, seconds: float) -> None:
        """Let it be *seconds* after the start."""
        self.clock.seconds = 1000.0 + seconds
        with self.timer._changed:
            self.timer._changed.notify_all()


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """Give a timer whose thread neither lingers nor pauses for long."""
    monkeypatch.setattr(nacks, "_BURST_GAP", 0.001)
    monkeypatch.setattr(nacks, "_LINGER", 0.01)
    rig = Rig()
    yield rig
    rig.timer.close()


def test_messages_come_back_when_they_are_due(rig: Rig) -> None:
    """In that order, however they were nacked; pulsar-client's own delay is asked for earlier."""
    rig.nack("late", 30)
    rig.nack("early", 10)
    rig.nack("middle", 20)
    rig.at(10 - LEAD)
    rig.owner.wait_for("early")
    rig.at(30 - LEAD)
    rig.owner.wait_for("early", "middle", "late")


def test_nothing_comes_back_before_it_is_due(rig: Rig) -> None:
    """Not even by a moment, beyond what pulsar-client adds."""
    rig.nack("later", 10)
    rig.at(10 - LEAD - 0.001)
    rig.nack("now", 0)
    rig.owner.wait_for("now")
    rig.at(10 - LEAD)
    rig.owner.wait_for("now", "later")


def test_a_later_shorter_nack_fires_first(rig: Rig) -> None:
    """The thread that waits for a long delay is woken for a short one."""
    rig.nack("long", 3600)
    rig.nack("now", 0)
    rig.owner.wait_for("now")


def test_equal_delays_come_back_in_the_order_of_their_nacks(rig: Rig) -> None:
    """The heap does not shuffle them."""
    for number in range(50):
        rig.nack(number, 5)
    rig.at(5)
    rig.owner.wait_for(*range(50))


def test_frequent_nacks_do_not_starve_older_ones(rig: Rig) -> None:
    """pulsar-client's timer starts anew with every nack; this one does not."""
    rig.nack("old", 10)
    for tick in range(100):
        rig.at(tick / 10)
        rig.nack("new", 60)
    rig.at(10)
    rig.owner.wait_for("old")


def test_letters_come_back_as_letters(rig: Rig) -> None:
    """Their consumer is another one."""
    rig.nack("message", 0)
    rig.nack("letter", 0, letter=True)
    rig.owner.wait_for("message", ("letter", "letter"))


def test_what_is_discarded_does_not_come_back(rig: Rig) -> None:
    """All of one owner's, and nothing of another's."""
    other = Owner()
    for number in range(20):
        rig.nack(f"mine {number}", 10 + number % 3)
        rig.timer.add(other, number, 10 + number, letter=False)
    rig.timer.discard(rig.owner)
    rig.at(30)
    other.wait_for(*range(20))
    assert [] == rig.owner.back


def test_an_owner_that_is_gone_is_forgotten(rig: Rig) -> None:
    """The timer keeps no consumer alive, and one that is gone costs the others nothing."""
    gone = Owner()
    rig.timer.add(gone, "gone", 5, letter=False)
    rig.nack("here", 5)
    reference = weakref.ref(gone)
    del gone
    gc.collect()
    assert reference() is None
    rig.at(5)
    rig.owner.wait_for("here")


def test_one_owners_trouble_is_not_the_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer that is closed meanwhile is logged; the others' messages come back."""

    def refuse(message_id: Any, *, letter: bool) -> None:
        raise RuntimeError(f"{message_id} {letter}")

    broken = Owner()
    monkeypatch.setattr(broken, "_redeliver", refuse)
    rig.timer.add(broken, "broken", 0, letter=False)
    rig.nack("fine", 0)
    rig.owner.wait_for("fine")
    assert [logging.WARNING] == [each.levelno for each in caplog.records]


def test_no_thread_runs_while_nothing_is_pending(
    rig: Rig, wait_until: Callable[[Callable[[], Any]], None]
) -> None:
    """It starts with the first nack, ends some time after the last, and starts again."""
    assert rig.timer._thread is None
    for message_id in ("first", "second"):
        rig.nack(message_id, 0)
        thread = rig.timer._thread
        wait_until(lambda thread=thread: thread is None or not thread.is_alive())
    assert rig.timer._thread is None
    rig.owner.wait_for("first", "second")


def test_one_thread_serves_all(rig: Rig) -> None:
    """However many consumers and threads nack."""
    owners = [Owner() for _ in range(10)]

    def nack(owner: Owner) -> None:
        for number in range(100):
            rig.timer.add(owner, number, 60, letter=False)

    threads = [threading.Thread(target=nack, args=(owner,)) for owner in owners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = [thread.name for thread in threading.enumerate()]
    assert 1 == names.count("pulsar-retry-nacks")
    rig.at(60)
    for owner in owners:
        owner.wait_for(*range(100))


def test_discarding_the_last_ends_the_thread(
    rig: Rig, wait_until: Callable[[Callable[[], Any]], None]
) -> None:
    """It does not stay for the ten days that the message had to wait."""
    rig.nack("far", 864_000)
    thread = rig.timer._thread
    assert thread is not None
    wait_until(lambda: rig.timer._changed._waiters)  # before that it would see the discard anyway
    rig.timer.discard(rig.owner)
    thread.join(20)
    assert (False, None) == (thread.is_alive(), rig.timer._thread)


def test_a_pause_between_bursts_does_not_hold_up_closing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is woken from it."""
    monkeypatch.setattr(nacks, "_BURST_GAP", 3600)
    rig.nack("first", 0)
    thread = rig.timer._thread
    assert thread is not None
    rig.owner.wait_for("first")
    closing = threading.Thread(target=rig.timer.close, daemon=True)
    closing.start()
    closing.join(20)
    assert (False, False) == (closing.is_alive(), thread.is_alive())


def test_a_burst_ends_for_pulsar_client_to_run(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first of very many would wait for the last; the rest comes with the next burst."""
    monkeypatch.setattr(nacks, "_BURST_GAP", 3600)
    for number in range(10):
        rig.nack(number, 5)
    redeliver = rig.owner._redeliver

    def slowly(message_id: Any, *, letter: bool) -> None:
        rig.clock.seconds += nacks._BURST / 4
        redeliver(message_id, letter=letter)

    monkeypatch.setattr(rig.owner, "_redeliver", slowly)
    rig.at(5)
    rig.owner.wait_for(0, 1, 2, 3)
    assert 6 == len(rig.timer._heap)


def test_bursts_follow_each_other(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many it takes, the oldest first."""
    redeliver = rig.owner._redeliver

    def slowly(message_id: Any, *, letter: bool) -> None:
        rig.clock.seconds += nacks._BURST / 4
        redeliver(message_id, letter=letter)

    monkeypatch.setattr(rig.owner, "_redeliver", slowly)
    for number in range(30):
        rig.nack(number, 5)
    rig.at(5)
    rig.owner.wait_for(*range(30))


def test_what_is_discarded_during_a_burst_does_not_come_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that closes is not asked for the rest of what was due."""
    other = Owner()
    redeliver = rig.owner._redeliver

    def discard(message_id: Any, *, letter: bool) -> None:
        redeliver(message_id, letter=letter)
        rig.timer.discard(rig.owner)

    monkeypatch.setattr(rig.owner, "_redeliver", discard)
    for number in range(3):
        rig.nack(number, 5)
    rig.timer.add(other, "other", 5, letter=False)
    rig.at(5)
    other.wait_for("other")
    assert [0] == rig.owner.back


@pytest.mark.parametrize("delay", [math.inf, 1e300, threading.TIMEOUT_MAX])
def test_an_endless_delay_is_not_the_others_trouble(rig: Rig, delay: float) -> None:
    """A backoff of the user's may return anything; the thread must live."""
    rig.nack("never", delay)
    rig.nack("now", 0)
    rig.owner.wait_for("now")
    rig.nack("later", 5)
    rig.at(5)
    rig.owner.wait_for("now", "later")


@pytest.mark.parametrize("delay", [math.nan, -math.inf, -5])
def test_a_delay_that_is_none_means_now(rig: Rig, delay: float) -> None:
    """And is released in its turn."""
    rig.nack("far", 3600)
    rig.nack("now", delay)
    rig.nack("too", 0)
    rig.owner.wait_for("now", "too")


def test_a_thread_that_cannot_start_is_tried_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next nack takes the earlier one along, and closing does not wait for what never ran."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            rig.nack("first", 0)
        rig.timer.discard(Owner())
    rig.nack("second", 0)
    rig.owner.wait_for("first", "second")


def test_the_thread_holds_no_owner(rig: Rig) -> None:
    """Neither before nor after a release: a client that is dropped can be collected."""
    rig.nack("released", 0)
    rig.owner.wait_for("released")
    rig.nack("pending", 3600)
    reference = weakref.ref(rig.owner)
    rig.timer.add(other := Owner(), "after", 0, letter=False)
    other.wait_for("after")  # the thread has returned from the one before
    rig.owner = other
    gc.collect()
    assert reference() is None


def test_closing_ends_the_thread(rig: Rig) -> None:
    """At once, whatever is pending; later nacks are forgotten, and closing twice is fine."""
    rig.nack("never", 3600)
    thread = rig.timer._thread
    assert thread is not None
    rig.timer.close()
    rig.timer.close()
    rig.nack("too late", 0)
    assert (False, None, []) == (thread.is_alive(), rig.timer._thread, rig.owner.back)


def test_a_consumer_may_close_the_timer_while_it_redelivers(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[[Callable[[], Any]], None]
) -> None:
    """The thread does not wait for itself."""
    monkeypatch.setattr(rig.owner, "_redeliver", lambda *_, **__: rig.timer.close())
    rig.nack("last", 0)
    wait_until(lambda: rig.timer._closed and rig.timer._thread is None)


def test_a_hundred_thousand_can_be_pending(rig: Rig) -> None:
    """One entry each, and all are gone when they are due."""
    for number in range(100_000):
        rig.nack(number, 60 + number % 7)
    assert 100_000 == len(rig.timer._heap)
    assert heapq.nsmallest(1, rig.timer._heap) == rig.timer._heap[:1]
    rig.at(70)
    with rig.owner._changed:
        assert rig.owner._changed.wait_for(lambda: len(rig.owner.back) == 100_000, 30)
    assert 0 == len(rig.timer._heap)

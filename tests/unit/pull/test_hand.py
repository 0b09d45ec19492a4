"""Who sleeps and who is woken, without a broker."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from pulsar_retry.pull.engine.hand import Hand, Slot
from pulsar_retry.runtime.upstream import Message, message_of


def message() -> Message:
    """Return a message of ten bytes."""
    return message_of(SimpleNamespace(length=lambda: 10), None)


def test_a_worker_does_not_sleep_beside_work() -> None:
    """What was put up before it lay down is seen."""
    hand = Hand()
    hand.ready.append(message())
    assert not hand.lie_down(lambda: None)
    assert not hand.idle


def test_a_worker_is_woken_once() -> None:
    """For one message one worker."""
    hand, woken = Hand(), []
    assert hand.lie_down(lambda: woken.append("a"))
    assert hand.lie_down(lambda: woken.append("b"))
    hand.put(message())
    assert ["b"] == woken
    hand.wake(5)
    assert ["b", "a"] == woken


def test_what_is_in_hand() -> None:
    """Received, less acknowledged by workers, less settled otherwise."""
    hand = Hand()
    hand.received, hand.received_size = 5, 50
    hand.acknowledged.extend([10, 10])
    hand.settled(message())
    assert (2, (2, 20)) == (hand.done(), hand.in_hand())


def test_news_are_kept_for_who_comes_late() -> None:
    """Many at once are one."""
    hand = Hand()
    hand.notify()
    hand.notify()
    assert [True, False] == [hand.wait(0.01), hand.wait(0.01)]


def test_the_end_wakes_everybody() -> None:
    """And nobody lies down after it."""
    hand, woken = Hand(), threading.Event()
    hand.slots.append(Slot())
    hand.lie_down(woken.set)
    hand.close()
    assert woken.is_set()
    assert not hand.lie_down(woken.clear)


def test_a_delivery_is_settled_by_one() -> None:
    """By the worker or by the end of its lease, whichever comes first."""
    slot, first, second = Slot(), message(), message()
    slot.work = first
    assert [True, False] == [slot.may_settle(first), slot.expire(first)]
    slot.work = second
    assert [True, False] == [slot.expire(second), slot.may_settle(second)]


def test_another_attempt_is_not_late() -> None:
    """Although the lease of an earlier one with the same worker has expired."""
    slot = Slot()
    slot.work = slot.seen = again = message()
    assert [True, False] == [slot.expire(again), slot.may_settle(again)]
    assert slot.seen is None
    slot.work = again
    assert slot.may_settle(again)

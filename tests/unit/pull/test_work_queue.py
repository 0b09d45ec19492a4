"""Who sleeps and who is woken, without a broker."""

from __future__ import annotations

import threading

from pulsar_retry.pull.engine.work_queue import Slot, Work, WorkQueue


def item(number: int = 0) -> tuple[str, int, None]:
    """Return a message of ten bytes."""
    return (f"message {number}", 10, None)


def test_a_worker_does_not_sleep_beside_work() -> None:
    """What was put up before it lay down is seen."""
    work_queue = WorkQueue()
    work_queue.ready.append(item())
    assert not work_queue.lie_down(lambda: None)
    assert not work_queue.idle


def test_a_worker_is_woken_once() -> None:
    """For one message one worker."""
    work_queue, woken = WorkQueue(), []
    assert work_queue.lie_down(lambda: woken.append("a"))
    assert work_queue.lie_down(lambda: woken.append("b"))
    work_queue.put(item())
    assert ["b"] == woken
    work_queue.wake(5)
    assert ["b", "a"] == woken


def test_what_is_in_hand() -> None:
    """Received, less acknowledged by workers, less settled otherwise."""
    work_queue, slot = WorkQueue(), Slot()
    work_queue.slots.append(slot)
    work_queue.received, work_queue.received_size = 5, 50
    slot.done, slot.size = 2, 20
    work_queue.settled(Work(*item()))
    assert (2, 20) == work_queue.in_hand()


def test_news_are_kept_for_who_comes_late() -> None:
    """Many at once are one."""
    work_queue = WorkQueue()
    work_queue.notify()
    work_queue.notify()
    assert [True, False] == [work_queue.wait(0.01), work_queue.wait(0.01)]


def test_the_end_wakes_everybody() -> None:
    """And nobody lies down after it."""
    work_queue, woken = WorkQueue(), threading.Event()
    work_queue.slots.append(Slot())
    work_queue.lie_down(woken.set)
    work_queue.close()
    assert woken.is_set()
    assert not work_queue.lie_down(woken.clear)


def test_a_delivery_is_settled_by_one() -> None:
    """By the worker or by the end of its lease, whichever comes first."""
    slot, first, second = Slot(), item(1), item(2)
    slot.work = first
    assert [True, False] == [slot.may_settle(first), slot.expire(first)]
    slot.work = second
    assert [True, False] == [slot.expire(second), slot.may_settle(second)]

"""Who sleeps and who is woken, without a broker."""

from __future__ import annotations

import threading

from pulsar_retry.pull.engine.work_queue import Slot, Work, WorkQueue


def item(number: int = 0) -> tuple[str, int, None]:
    """Return a message of ten bytes."""
    return (f"message {number}", 10, None)


def test_a_worker_does_not_sleep_beside_work() -> None:
    """What was put up before it lay down is seen."""
    board = WorkQueue()
    board.ready.append(item())
    assert not board.lie_down(lambda: None)
    assert not board.idle


def test_a_worker_is_woken_once() -> None:
    """For one message one worker."""
    board, woken = WorkQueue(), []
    assert board.lie_down(lambda: woken.append("a"))
    assert board.lie_down(lambda: woken.append("b"))
    board.put(item())
    assert ["b"] == woken
    board.wake(5)
    assert ["b", "a"] == woken


def test_what_is_in_hand() -> None:
    """Received, less acknowledged by workers, less settled otherwise."""
    board, slot = WorkQueue(), Slot()
    board.slots.append(slot)
    board.received, board.received_size = 5, 50
    slot.done, slot.size = 2, 20
    board.settled(Work(*item()))
    assert (2, 20) == board.held()


def test_news_are_kept_for_who_comes_late() -> None:
    """Many at once are one."""
    board = WorkQueue()
    board.notify()
    board.notify()
    assert [True, False] == [board.wait(0.01), board.wait(0.01)]


def test_the_end_wakes_everybody() -> None:
    """And nobody lies down after it."""
    board, woken = WorkQueue(), threading.Event()
    board.slots.append(Slot())
    board.lie_down(woken.set)
    board.close()
    assert woken.is_set()
    assert not board.lie_down(woken.clear)


def test_a_delivery_is_settled_by_one() -> None:
    """By the worker or by the end of its lease, whichever comes first."""
    slot, first, second = Slot(), item(1), item(2)
    slot.work = first
    assert [True, False] == [slot.may_settle(first), slot.expire(first)]
    slot.work = second
    assert [True, False] == [slot.expire(second), slot.may_settle(second)]

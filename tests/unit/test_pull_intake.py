"""Who receives, without a broker."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pulsar

from pulsar_retry.pull.engine.receiver import Receiver
from pulsar_retry.pull.engine.work_queue import Slot, WorkQueue
from pulsar_retry.pull.rules.flow import FlowControl
from pulsar_retry.pull.rules.lanes import Lanes
from pulsar_retry.pull.rules.lease import Lease


class Queue:
    """A consumer that holds messages, or raises what it is told to."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.error: Exception | None = None

    def receive(self, timeout_millis: int) -> Any:
        """Return one of them; nobody may wait here."""
        assert timeout_millis == 0
        if self.error is not None:
            raise self.error
        if not self.left:
            raise pulsar.Timeout("Pulsar error: Timeout")
        self.left -= 1
        return SimpleNamespace(_message=SimpleNamespace(length=lambda: 10))


def intake(board: WorkQueue, queue: Queue, flow_control: FlowControl | None = None) -> Receiver:
    """Return what receives from *queue* for one worker."""
    board.slots.append(Slot())
    settler: Any = SimpleNamespace(
        consumer=queue,
        handover=SimpleNamespace(
            when_moved=lambda _: None, cut=frozenset, flowing=lambda: None, whole=None
        ),
        own_letters=SimpleNamespace(is_empty=True),
        fatal=None,
    )
    return Receiver(
        board,
        settler,
        flow_control=flow_control or FlowControl(),
        lease=Lease(),
        lanes=None,
        lane_limits=Lanes(),
        switch=None,
        valve=None,
        probe=Future,
    )


def test_a_worker_receives_what_is_there() -> None:
    """As much as it may at a time, and then again; the receiving thread sleeps on."""
    board, queue = WorkQueue(), Queue(3)
    intake(board, queue)
    board.top_up()
    assert (1, 10) == board.held()
    board.top_up()
    assert (2, 20) == board.held()
    assert not board.wait(0)


def test_a_worker_waits_for_nothing() -> None:
    """That is what the receiving thread is woken for."""
    board, queue = WorkQueue(), Queue(0)
    intake(board, queue)
    board.top_up()
    assert board.wait(0)


def test_flow_control_holds_workers_back_too() -> None:
    """They receive no more than may be in hand."""
    board, queue = WorkQueue(), Queue(3)
    intake(board, queue, FlowControl(max_messages=1))
    board.top_up()
    board.top_up()
    assert (1, 10) == board.held()
    assert queue.left == 2


def test_errors_are_the_receiving_threads() -> None:
    """A worker must go on; it wakes who knows what to do."""
    board, queue = WorkQueue(), Queue(1)
    queue.error = pulsar.AlreadyClosed("Pulsar error: AlreadyClosed")
    intake(board, queue)
    board.top_up()
    assert board.wait(0)
    assert (0, 0) == board.held()


def test_nothing_is_received_after_the_end() -> None:
    """Nor while the receiving thread is at it: what it counts, it alone has received."""
    board, queue = WorkQueue(), Queue(3)
    intake(board, queue).run(lambda: True)
    board.top_up()
    assert queue.left == 3

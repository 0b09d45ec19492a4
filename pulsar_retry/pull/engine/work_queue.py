"""What the receiving thread and the workers share.

The receiving thread alone puts messages up and decides about more; workers take them from a deque,
which needs no lock. A worker that finds none lies down until it is woken, and tells the receiving
thread so. In this way a message costs neither a lock nor a switch between threads: those are paid
once for the many that are received in one go.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import attrs

from pulsar_retry.runtime.clock import SYSTEM, Clock


@attrs.define(eq=False)
class LaneEntry:
    """A message's place in its lane.

    Attributes:
        key: The lane's key.
        retries: How often it was retried in place.
        comes_again: Whether it was left with the broker before, and was asked for.
        era: Of which of the lanes' eras it is (`OrderedLanes.begin_anew`).
    """

    key: str
    retries: int = 0
    comes_again: bool = False
    era: int = 0


class Work(NamedTuple):
    """A message in hand.

    On the way from the receiving thread to a worker it is a plain tuple of the same, which takes a
    fifth of the time to make; whoever looks closer makes it this (`Work.of`).

    Attributes:
        message: The `pulsar.Message`.
        size: Bytes of its payload.
        entry: Its place in a lane; None: it has none.
    """

    message: Any
    size: int
    entry: LaneEntry | None

    @classmethod
    def of(cls, item: Item) -> Work:
        """Return *item* with names."""
        return item if isinstance(item, Work) else cls(*item)


Item = tuple[Any, int, LaneEntry | None]


class Slot:
    """One worker, as others see it.

    Attributes:
        done: How many messages it has acknowledged.
        size: How many bytes these had.
        work: What it handles; None: nothing.
        watched: What it handles if that has a lease: it has been at it for a while.
        expired: What it still handles although the lease has expired.
        interrupt: Called when a lease has expired, to end the handler where that can be done.
        leave: Called when a lease has expired, to forget that the message is being handled.
        retired: Whether another worker has taken its place: it ends when its handler returns.
    """

    __slots__ = (
        "done",
        "expired",
        "interrupt",
        "leave",
        "lock",
        "retired",
        "seen",
        "seen_at",
        "size",
        "watched",
        "work",
    )

    def __init__(self) -> None:
        self.done = 0
        self.size = 0
        self.work: Item | None = None
        self.watched: Item | None = None
        self.expired: Item | None = None
        self.interrupt: Callable[[], None] | None = None
        self.leave: Callable[[], None] | None = None
        self.retired = False
        self.lock = threading.Lock()  # guards the moment in which work ends or expires
        self.seen: Item | None = None
        self.seen_at = 0.0

    def may_settle(self, work: Item) -> bool:
        """End *work*; tell whether it may be settled, for its lease has not expired."""
        with self.lock:
            self.work = None
            return self.expired is not work

    def expire(self, work: Item, *, interrupts: bool = True) -> bool:
        """Take *work* away from the worker; tell whether it was still at it.

        Its handler is interrupted before the worker can get to the next message.
        """
        with self.lock:
            if self.work is not work:
                return False
            self.expired = work
            if self.leave is not None:
                self.leave()
            if interrupts and self.interrupt is not None:
                self.interrupt()
            return True

    def retire(self) -> bool:
        """Have the worker end when its handler returns, if it still hangs after its lease."""
        with self.lock:
            if self.work is None or self.work is not self.expired:
                return False
            self.retired = True
            return True


class WorkQueue:
    """The messages in hand, and who is at work. Thread-safe.

    Attributes:
        ready: What is to be handled next.
        idle: For each worker that lies down, what wakes it.
        slots: The workers.
        counting: Those of them that count what they have acknowledged.
        received: How many messages were put up, and how many bytes, by the receiving thread.
        closed: Whether the workers are to end.
        low: With fewer than so many ready, more are received before a worker has nothing to do; 0:
            they are not.
        top_up: What the worker calls who sees that, to have them received; it does not block.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self.ready: deque[Item] = deque()
        self.idle: deque[Callable[[], None]] = deque()
        self.slots: list[Slot] = []
        self.counting = self.slots
        self.received = 0
        self.received_size = 0
        self.closed = False
        self.low = 0
        self.top_up: Callable[[], None] = self.notify
        self._changed = clock.lock()  # held until something has changed
        self._changed.acquire()
        self._lock = threading.Lock()
        self._settled = 0
        self._settled_size = 0

    def held(self) -> tuple[int, int]:
        """Return how many messages are in hand, and their bytes."""
        with self._lock:
            count, size = self._settled, self._settled_size
        for slot in self.counting:
            count += slot.done
            size += slot.size
        return self.received - count, self.received_size - size

    def done(self) -> int:
        """Return how many messages workers have acknowledged themselves."""
        return sum(slot.done for slot in self.counting)

    def replace(self, slot: Slot, by: Slot) -> None:
        """Put another worker in the place of one that hangs or has died; it goes on counting."""
        by.done, by.size = slot.done, slot.size
        self.slots[self.slots.index(slot)] = by

    def settled(self, work: Work) -> None:
        """Take note of one that was settled in another way than by a worker's acknowledgement."""
        with self._lock:
            self._settled += 1
            self._settled_size += work.size
        self.notify()

    # -- workers ----------------------------------------------------------------------------------

    def lie_down(self, wake: Callable[[], None]) -> bool:
        """Have *wake* called when there is work; tell whether the worker may sleep until then.

        Where it may not, there is work already, or the end has come.
        """
        self.idle.append(wake)
        if self.ready or self.closed:
            # Both were put up before or after this worker was on the list: if it is still on it,
            # nobody will wake it.
            with contextlib.suppress(ValueError):
                self.idle.remove(wake)
                return False
        self.notify()
        return True

    def wake(self, count: int) -> None:
        """Wake so many workers, or all that lie down."""
        with contextlib.suppress(IndexError):
            for _ in range(count):
                self.idle.pop()()

    def put(self, work: Item) -> None:
        """Put up one message, for a worker that lies down, or the next that is done."""
        self.ready.append(work)
        self.wake(1)

    def close(self) -> None:
        """Let the workers end, each when its handler has returned."""
        self.closed = True
        self.wake(len(self.slots))
        self.notify()

    # -- the receiving thread ---------------------------------------------------------------------

    def notify(self) -> None:
        """Wake the receiving thread: something has changed."""
        with contextlib.suppress(RuntimeError):  # it will look anyway
            self._changed.release()

    def wait(self, timeout: float) -> bool:
        """Wait until something has changed, *timeout* seconds at most; tell whether it has."""
        return self._changed.acquire(timeout=timeout)

    def unstarted(self) -> list[Work]:
        """Take down what nobody has begun to handle, and return it."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(Work.of(self.ready.popleft()))
        return taken

    def running(self) -> int:
        """Return how many handlers run whose message is still theirs."""
        return sum(s.work is not None and s.work is not s.expired for s in list(self.slots))


#: The queue of the message that a handler on a loop, or a task of its own, is called with.
HANDLED_BY: ContextVar[WorkQueue | None] = ContextVar("HANDLED_BY", default=None)

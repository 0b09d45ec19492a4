"""The hand: the messages that are received and not settled, and the workers.

The receiving thread puts messages into a deque, which needs no lock, and the workers take them from
there. A worker that finds none goes to sleep until it is woken, and notifies the receiving thread.
Many messages are received together. A lock, or a switch between threads, is necessary only once for
all of them.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple, Protocol

import attrs

from pulsar_retry.runtime import fork
from pulsar_retry.runtime.clock import SYSTEM, Clock
from pulsar_retry.runtime.upstream import Message

#: What closes the gate while a user has paused the subscriber.
PAUSED = "paused"


@attrs.frozen
class Place:
    """What is known of a message in hand (`Message.place`). Most messages have none.

    A message with a place is not acknowledged by its worker, but by the settler.

    Attributes:
        lane: The key of its lane; None if it has no lane.
        era: The era in which it was received (`OrderedLanes.begin_anew`).
    """

    lane: str | None = None
    era: int = 0


class Slot:
    """The state of one worker, as other threads see it.

    Attributes:
        work: The message that it handles; None if there is none.
        watched: The message that it handles, if that message has a lease because it takes long.
        expired: The message that it still handles although the lease has expired.
        interrupt: Called when a lease has expired, to end the handler if that is possible.
        retired: Whether another worker has taken its place. It ends when its handler returns.
        seen: The message that it handled at the receiving thread's last check.
        seen_at: When the first check with it was, or its lease has expired, by the monotonic clock.
    """

    __slots__ = (
        "expired",
        "interrupt",
        "lock",
        "retired",
        "seen",
        "seen_at",
        "watched",
        "work",
    )

    def __init__(self) -> None:
        self.work: Message | None = None
        self.watched: Message | None = None
        self.expired: Message | None = None
        self.interrupt: Callable[[], None] | None = None
        self.retired = False
        self.lock = threading.Lock()  # guards the moment in which the work ends or expires
        self.seen: Message | None = None
        self.seen_at = 0.0

    def may_settle(self, message: Message) -> bool:
        """End *work*; tell whether it may be settled because its lease has not expired.

        If the same message comes again, after a failure, that is another attempt.
        """
        with self.lock:
            is_expired = self.expired is message
            self.work = self.watched = self.expired = self.seen = None
            return not is_expired

    def expire(self, message: Message, *, interrupts: bool = True) -> bool:
        """Take *work* away from the worker; tell whether the worker still handled it.

        The handler is interrupted before the worker can begin the next message.
        """
        with self.lock:
            if self.work is not message:
                return False
            self.expired = message
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


class Hand:
    """The messages in hand, and the workers. Thread-safe.

    Attributes:
        ready: The messages to be handled next.
        gated: Messages that could be handled next, but the gate is closed.
        queue: Where messages go that could be handled next: one of these two.
        idle: For each worker that sleeps, the function that wakes it.
        slots: The workers.
        received: How many messages were received. `received_size` is their size in bytes.
        acknowledged: The sizes of messages that workers have acknowledged, until they are counted.
        is_stopping: Whether nothing more is to be received.
        closed: Whether the workers are to end.
        is_one_thread: Whether the workers are tasks of one event loop. The more of them run in one
            of its turns, the less a turn costs each.
        low: When fewer messages than this are ready, more are received, before a worker is idle. 0
            switches this off.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self.ready: deque[Message] = deque()
        self.gated: deque[Message] = deque()
        self.queue = self.ready
        self._closed_by: dict[str, str] = {}
        self.idle: deque[Callable[[], object]] = deque()
        self.slots: list[Slot] = []
        self.received = 0
        self.received_size = 0
        self.acknowledged: deque[int] = deque()
        self.is_stopping = False
        self.closed = False
        self.is_one_thread = False
        self.low = 0
        self._changed = clock.lock()  # held until something has changed
        self._changed.acquire()
        self._lock = threading.Lock()
        self._done = 0
        self._settled = 0
        self._settled_size = 0
        # What replaces it is true. So the worker whose handler returns in a forked child ends.
        fork.guard(self, "closed")

    def in_hand(self) -> tuple[int, int]:
        """Return how many messages are in hand, and their size in bytes."""
        settled = self.done() + self._settled
        return self.received - settled, self.received_size - self._settled_size

    def done(self) -> int:
        """Return how many messages the workers have acknowledged themselves."""
        with self._lock, contextlib.suppress(IndexError):
            while True:
                self._settled_size += self.acknowledged.popleft()
                self._done += 1
        return self._done

    def settled(self, message: Message) -> None:
        """Record a message that was settled other than by a worker's own acknowledgement."""
        size = message._message.length()
        with self._lock:
            self._settled += 1
            self._settled_size += size
        self.notify()

    # -- workers ----------------------------------------------------------------------------------

    def lie_down(self, wake: Callable[[], object]) -> bool:
        """Have *wake* called when there is work; tell whether the worker may sleep until then.

        It may not sleep if there is work already, or if the queue is closed.
        """
        self.idle.append(wake)
        if self.ready or self.closed:
            # This may have happened before the worker was on the list. If the worker is still on
            # the list, nobody will wake it.
            with contextlib.suppress(ValueError):
                self.idle.remove(wake)
                return False
        self.notify()
        return True

    def wake(self, count: int) -> None:
        """Wake *count* workers, or all that sleep if these are fewer."""
        with contextlib.suppress(IndexError):
            for _ in range(count):
                self.idle.pop()()

    def put(self, message: Message) -> None:
        """Make one message ready, for a worker that sleeps, or for the next that is free.

        While the gate is closed, it waits behind the gate.
        """
        queue = self.queue
        queue.append(message)
        if queue is self.ready:
            self.wake(1)
        else:
            self.notify()

    # -- the gate ---------------------------------------------------------------------------------

    @property
    def paused(self) -> str | None:
        """The reason of a pause; None: there is none."""
        return self._closed_by.get(PAUSED)

    def close_gate(self, by: str, reason: str = "") -> None:
        """Let no message begin until `let_in`, or `open_gate` of the same *by*."""
        with self._lock:
            self._closed_by[by] = reason
            self.queue = self.gated
            self.gated.extend(self._taken(self.ready))
        self.notify()

    def open_gate(self, by: str) -> None:
        """Let messages begin again, unless the gate is closed by something else."""
        with self._lock:
            self._closed_by.pop(by, None)
            if not self._closed_by:
                self.queue = self.ready
        self.let_go()
        self.notify()

    def let_go(self) -> None:
        """Make gated messages ready if the gate is open: one may have come while it opened."""
        if self.gated and self.queue is self.ready:
            self.ready.extend(self._taken(self.gated))
            self.wake(len(self.slots))

    def let_in(self, message: Message) -> bool:
        """Have a gated message handled, although the gate is closed; tell whether it was there."""
        try:
            self.gated.remove(message)
        except ValueError:  # the gate has opened in this moment
            return False
        message.place = message.place or Place()  # so that the settler learns how it ends
        self.ready.append(message)
        self.wake(1)
        return True

    @staticmethod
    def _taken(queue: deque[Message]) -> list[Message]:
        """Empty *queue*, and return what was in it."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(queue.popleft())
        return taken

    def close(self) -> None:
        """Have the workers end, each when its handler has returned."""
        self.closed = True
        self.wake(len(self.slots))
        self.notify()

    # -- the receiving thread ---------------------------------------------------------------------

    def notify(self) -> None:
        """Wake the receiving thread: something has changed."""
        if self._changed.locked():  # otherwise it was released already: it will check anyway
            with contextlib.suppress(RuntimeError):  # another thread was quicker
                self._changed.release()

    def wait(self, timeout: float) -> bool:
        """Wait until something has changed, *timeout* seconds at most; tell whether it has."""
        return self._changed.acquire(timeout=timeout)

    def unstarted(self) -> list[Message]:
        """Remove and return the messages that no handler has begun."""
        return [*self.take_gated(), *self._taken(self.ready)]

    def take_gated(self) -> list[Message]:
        """Remove and return the messages that wait behind the gate."""
        return self._taken(self.gated)

    def is_running(self) -> bool:
        """Tell whether a handler runs within its lease."""
        for slot in list(self.slots):
            if slot.work is not None and slot.work is not slot.expired:
                return True
        return False


#: The queue that the current handler's message came from.
HANDLED_BY: ContextVar[Hand | None] = ContextVar("HANDLED_BY", default=None)


class Outlook(NamedTuple):
    """What may be received, and when more may begin.

    Attributes:
        room: How many messages may wait to begin, those included that may begin now.
        wait: The seconds until more may begin, if nothing else happens; math.inf if time changes
            nothing, and if more may begin now.
        is_paced: Whether messages begin one by one, with pauses.
    """

    room: int
    wait: float
    is_paced: bool


class AdmissionControl(Protocol):
    """Limits how many messages a subscriber begins. Thread-safe: several threads call it.

    The handler counts what has begun and ended. Messages that may not begin yet wait. A subscriber
    that is stopped gives them back.
    """

    def attach(self, changed: Callable[[], None]) -> None:
        """Register *changed*, which is called when more messages may begin than before."""

    def may_begin(self) -> int:
        """Return how many more messages may begin now."""

    def outlook(self) -> Outlook:
        """Return what may be received, and when more may begin."""

    def problem(self) -> str:
        """Return in words what keeps messages from beginning; empty if all is well."""

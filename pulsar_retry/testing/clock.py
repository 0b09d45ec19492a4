"""A virtual clock: hours pass in milliseconds, whenever no thread has work to do.

The threads of this package take part: virtual time moves on only when all of them wait, so that
nothing happens before an earlier event is finished. If another thread waits for a later event, such
as a test in `Consumer.receive`, the time passes up to that event.
"""

from __future__ import annotations

import heapq
import itertools
import math
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from pulsar_retry.policy.checks import Duration, seconds
from pulsar_retry.runtime.clock import Clock

_Task = TypeVar("_Task", bound=Callable[..., object])

#: 2026-01-01T00:00:00Z.
_START = 1_767_225_600.0

#: The first value of `monotonic`.
_ZERO = 1000.0

#: Seconds between two looks at something that has to be polled. It is long, because each look costs
#: a switch between threads.
_INTERVAL = 60.0


class VirtualClock(Clock):
    """Time that passes when a test advances it, or when a thread waits. Thread-safe.

    `MemoryBroker` makes one. It starts at 2026-01-01T00:00:00Z.
    """

    def __init__(self, *, patience: Duration = 60.0) -> None:
        """Make a clock that stands still.

        Args:
            patience: Real seconds, or a timedelta, that threads have to finish their work.
        """
        self._patience = seconds("patience", patience)
        self._now = _ZERO
        self._changed = threading.Condition(threading.RLock())  # guards all attributes below
        self._due: list[tuple[float, int, Callable[[], object], Ticket | None]] = []
        self._numbers = itertools.count()
        self._busy: dict[object, str] = {}
        self._driver: threading.Thread | None = None

    # -- for tests ------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes back."""
        return self._now

    def time(self) -> float:
        """Return the seconds since 1970."""
        return self._now - _ZERO + _START

    def sleep(self, seconds: float) -> None:
        """Wait *seconds* of this clock. Use it in handlers that are meant to take time."""
        if seconds > 0:
            self.park(Ticket(), seconds)

    def advance(self, duration: Duration) -> None:
        """Let *duration* pass. Everything that becomes due happens at its time.

        Args:
            duration: Seconds or a timedelta; 0 runs only what is due now.

        Raises:
            ConfigError: *duration* is not a duration.
            RuntimeError: a handler has called this; it must use `sleep`.
            TimeoutError: a thread did not finish its work in *patience* seconds.
        """
        if _takes_part():
            raise RuntimeError("a handler cannot advance the clock that waits for it: use sleep()")
        limit = self._now + seconds("duration", duration, maximum=math.inf)
        self._drive(lambda: False, limit)

    def settle(self) -> None:
        """Wait until everything that is due now is done; no time passes.

        Raises:
            RuntimeError: a handler has called this.
            TimeoutError: see `advance`.
        """
        self.advance(0)

    def call_at(self, when: float, call: Callable[[], object]) -> None:
        """Call *call* at the time *when*, in the time of `monotonic`. It must not block."""
        self._put(when, call, None)

    def next_due(self) -> float:
        """Return when the next event is due, in the time of `monotonic`; inf if there is none."""
        with self._changed:
            while self._due and (ticket := self._due[0][3]) is not None and ticket.is_over:
                heapq.heappop(self._due)  # no thread waits for it any more
            return self._due[0][0] if self._due else math.inf

    # -- for the code that uses the clock (`Clock`) ---------------------------------------------

    def lock(self) -> Any:
        """Return a lock that another thread may release."""
        return _Lock(self)

    def condition(self, lock: Any = None) -> threading.Condition:
        """Return a condition whose time-outs use this clock."""
        return _Condition(self, lock)

    def event(self) -> threading.Event:
        """Return an event whose time-outs use this clock."""
        return _Event(self)

    def thread(self, **options: Any) -> threading.Thread:
        """Return a thread that takes part: this clock waits for it."""
        return _Thread(self, **options)

    def interval(self, seconds: float) -> float:
        """Return the seconds between two looks at something that has to be polled."""
        return max(seconds, _INTERVAL)

    def begin(self, what: object) -> None:
        """Note that *what* is busy."""
        with self._changed:
            self._busy[what] = getattr(what, "name", type(what).__name__)

    def end(self, what: object) -> None:
        """Note that *what* is done, or waits for something."""
        with self._changed:
            self._busy.pop(what, None)
            if not self._busy:
                self._changed.notify_all()

    def counted(self, task: _Task) -> _Task:
        """Return *task* with a wrapper for another thread; it counts as busy from now on."""
        what = object()
        self.begin(what)

        def counting(*args: Any, **kwargs: Any) -> object:
            try:
                return task(*args, **kwargs)
            finally:
                self.end(what)

        return counting  # type: ignore[return-value]

    # -- waiting --------------------------------------------------------------------------------

    def park(self, ticket: Ticket, timeout: float | None) -> bool:
        """Wait until *ticket* is woken or timed out; tell whether it was woken."""
        with self._changed:
            if not ticket.is_over and timeout is not None:
                # Always later than now: the remaining time can be too small to change the clock.
                due = max(self._now + timeout, math.nextafter(self._now, math.inf))
                self._put(due, lambda: self._over(ticket, woken=False), ticket)
            if ticket.thread is not None and not ticket.is_over:
                self.end(ticket.thread)
        if ticket.thread is None:
            self._drive(lambda: ticket.is_over, math.inf)
        else:
            ticket.gate.acquire()
        return ticket.is_woken

    def _put(self, when: float, call: Callable[[], object], ticket: Ticket | None) -> None:
        with self._changed:
            heapq.heappush(self._due, (when, next(self._numbers), call, ticket))
            self._changed.notify_all()

    def wake(self, ticket: Ticket) -> bool:
        """Wake the thread that waits on *ticket*; tell whether it was still waiting."""
        return self._over(ticket, woken=True)

    def _over(self, ticket: Ticket, *, woken: bool) -> bool:
        with self._changed:
            if ticket.is_over:
                return False
            ticket.is_over, ticket.is_woken = True, woken
            if ticket.thread is not None:
                self.begin(ticket.thread)  # although it does not run yet
            ticket.gate.release()
            self._changed.notify_all()
            return True

    def _drive(self, is_over: Callable[[], bool], limit: float) -> None:
        """Run what is due, in order, until *is_over* returns True or *limit* is reached."""
        while (call := self._next(is_over, limit)) is not None:
            try:
                call()
            finally:
                with self._changed:
                    self._driver = None
                    self._changed.notify_all()

    def _next(self, is_over: Callable[[], bool], limit: float) -> Callable[[], object] | None:
        """Wait until no thread is busy, then set the time to the next event; None at the end."""
        me = threading.current_thread()
        with self._changed:
            while not is_over():
                if self._busy or self._driver is not None:
                    self._await_others()
                elif self.next_due() <= min(limit, sys.float_info.max):
                    due, _, call, _ = heapq.heappop(self._due)
                    self._now = max(self._now, due)
                    self._driver = me
                    return call
                elif limit < math.inf:
                    self._now = max(self._now, limit)
                    return None
                elif not self._changed.wait(self._patience):
                    raise TimeoutError("nothing is due, so nothing will end this wait")
        return None

    def _await_others(self) -> None:
        if not self._changed.wait(self._patience) and self._busy:
            names = ", ".join(sorted(set(self._busy.values())))
            raise TimeoutError(
                f"virtual time cannot advance: still busy after {self._patience:g} s: {names}"
            )


class Ticket:
    """One wait of one thread.

    Attributes:
        thread: The thread, if it takes part.
        gate: Locked until the wait is over.
        is_over: Whether it was woken or timed out.
        is_woken: Whether it was woken.
    """

    __slots__ = ("gate", "is_over", "is_woken", "thread")

    def __init__(self) -> None:
        self.thread = _takes_part()
        self.gate = threading.Lock()
        self.gate.acquire()
        self.is_over = False
        self.is_woken = False


def _takes_part() -> _Thread | None:
    """Return the current thread if a clock waits for it."""
    thread = threading.current_thread()
    return thread if isinstance(thread, _Thread) else None


class _Thread(threading.Thread):
    """A thread that is busy unless it waits on its clock."""

    def __init__(self, clock: VirtualClock, **options: Any) -> None:
        super().__init__(**options)
        self._clock = clock

    def start(self) -> None:
        self._clock.begin(self)
        try:
            super().start()
        except BaseException:
            self._clock.end(self)
            raise

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._clock.end(self)


class _Lock:
    """A lock like `threading.Lock`."""

    def __init__(self, clock: VirtualClock) -> None:
        self._changed = clock.condition(threading.Lock())
        self._is_held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        longest = None if blocking and timeout < 0 else max(0.0, timeout)
        with self._changed:
            if not self._changed.wait_for(lambda: not self._is_held, longest):
                return False
            self._is_held = True
            return True

    def release(self) -> None:
        with self._changed:
            if not self._is_held:
                raise RuntimeError("release unlocked lock")
            self._is_held = False
            self._changed.notify()

    def locked(self) -> bool:
        return self._is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Condition(threading.Condition):
    """A condition that waits by the virtual clock."""

    def __init__(self, clock: VirtualClock, lock: Any) -> None:
        super().__init__(lock)
        self._clock = clock
        self._tickets: deque[Ticket] = deque()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_owned():  # type: ignore[attr-defined]  # of threading's own
            raise RuntimeError("cannot wait on un-acquired lock")
        if timeout is not None and timeout <= 0:
            return False
        self._tickets.append(ticket := Ticket())
        saved = self._release_save()  # type: ignore[attr-defined]
        try:
            return self._clock.park(ticket, timeout)
        finally:
            self._acquire_restore(saved)  # type: ignore[attr-defined]

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else self._clock.monotonic() + timeout
        while not (result := predicate()):
            left = None if end is None else end - self._clock.monotonic()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        if not self._is_owned():  # type: ignore[attr-defined]
            raise RuntimeError("cannot notify on un-acquired lock")
        while n > 0 and self._tickets:
            n -= self._clock.wake(self._tickets.popleft())

    def notify_all(self) -> None:
        self.notify(len(self._tickets))


class _Event(threading.Event):
    """An event that waits by the virtual clock."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._cond = clock.condition(threading.Lock())

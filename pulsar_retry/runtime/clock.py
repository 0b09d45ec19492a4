"""The clock of this package, the locks and threads that wait on it, and the timer.

All are in one place, because a test that sets the clock has to know which threads wait. `Clock` is
the real one. `pulsar_retry.testing` has a clock whose hours pass in milliseconds.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

_log = logging.getLogger("pulsar_retry")

#: Seconds that the timer's thread stays without pending calls, so that a slow stream of nacks does
#: not start a thread for each.
_LINGER = 1.0

_Task = TypeVar("_Task", bound=Callable[..., object])


class Clock:
    """The system's time and threads.

    Functions that are called once for each message are those of the standard library itself, so
    they cost nothing more.
    """

    #: The seconds of a clock that never goes back.
    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    sleep: Callable[[float], None] = staticmethod(time.sleep)
    #: Seconds since 1970.
    time: Callable[[], float] = staticmethod(time.time)
    lock: Callable[[], threading.Lock] = staticmethod(threading.Lock)
    condition: Callable[..., threading.Condition] = staticmethod(threading.Condition)
    event: Callable[[], threading.Event] = staticmethod(threading.Event)
    thread: Callable[..., threading.Thread] = staticmethod(threading.Thread)

    def now(self) -> datetime:
        """Return the present time, in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)

    def interval(self, seconds: float) -> float:
        """Return the seconds between two checks of something that does not wake waiters."""
        return seconds

    def begin(self, what: object) -> None:
        """Record that *what* is running, on a thread that `thread` did not make."""

    def end(self, what: object) -> None:
        """Record that it has finished, or is waiting."""

    def counted(self, task: _Task) -> _Task:
        """Return *task*, which another thread will run. It counts as running from now on."""
        return task


#: The only clock outside of tests.
SYSTEM = Clock()


class TimerTarget(Protocol):
    """An object that can be called later."""

    def check(self) -> None:
        """Do what is due. It must be short, because other owners wait meanwhile."""


class Timer:
    """Calls its owners at the times that they requested; there is one timer for each client.

    It is for nacks, leases and missing receipts. Thread-safe. Its thread runs only while calls are
    pending, and keeps no owner alive. An owner has one pending call, the earliest that it
    requested. When it is called, it requests the next one itself.

    Attributes:
        now: Returns the seconds of the clock that delays use.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self.now = clock.monotonic
        self._new_thread = clock.thread
        self._due: dict[weakref.ref[Any], float] = {}
        self._changed = clock.condition()
        self._thread: threading.Thread | None = None
        self._wakes = 0.0
        self._closed = False

    def check_later(self, owner: TimerTarget, delay: float) -> None:
        """Call *owner* in *delay* seconds or slightly later; earlier if it requested that."""
        # A user's own backoff can return anything: neither inf nor NaN must end the thread.
        due = self.now() + min(max(0.0, delay), threading.TIMEOUT_MAX)
        with self._changed:
            if self._closed:
                return
            key = weakref.ref(owner)
            self._due[key] = due = min(due, self._due.get(key, due))
            if self._thread is None:
                thread = self._new_thread(target=self._run, name="pulsar-retry-timer", daemon=True)
                thread.start()  # if it cannot start, a later call may succeed
                self._thread = thread
            elif due < self._wakes:
                self._changed.notify()

    def discard(self, owner: TimerTarget) -> None:
        """Cancel the pending call of *owner*."""
        with self._changed:
            if self._due.pop(weakref.ref(owner), None) is not None:
                self._changed.notify()

    def close(self) -> None:
        """Cancel all calls and end the thread."""
        with self._changed:
            self._closed = True
            self._due = {}  # a new dictionary: a garbage collection can call this during `_wait`
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while (key := self._wait()) is not None:
            owner = key()
            if owner is None:
                continue
            try:
                owner.check()
            except Exception:  # noqa: BLE001 - an error of one owner must not stop the others
                _log.warning("a scheduled task failed", exc_info=True)
            del owner  # do not keep it alive during the wait

    def _wait(self) -> weakref.ref[Any] | None:
        """Wait until an owner is due and return it; None ends the thread."""
        with self._changed:
            while not self._closed:
                due = self._due
                first = min(due, key=due.__getitem__, default=None)
                now = self.now()
                self._wakes = due[first] if first is not None else now + _LINGER
                if first is not None and self._wakes <= now:
                    del due[first]
                    return first
                if not self._changed.wait(self._wakes - now) and not self._due:
                    break
            self._thread = None
            return None

"""The clock of this package, and the locks and threads that wait on it.

Both are in one place, because a test that sets the clock has to know which threads wait. `Clock` is
the real one. `pulsar_retry.testing` has a clock whose hours pass in milliseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

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

"""Where this package takes the time from, and what its threads wait on.

One seam for both, because a clock that a test sets has to know who waits for it. `Clock` is the
real one; `pulsar_retry.testing` has one whose hours pass in milliseconds.
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

    What is called once per message is the very function of the standard library, so the seam costs
    nothing there.
    """

    #: Seconds of a clock that never goes back.
    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    sleep: Callable[[float], None] = staticmethod(time.sleep)
    #: Seconds since 1970.
    time: Callable[[], float] = staticmethod(time.time)
    lock: Callable[[], threading.Lock] = staticmethod(threading.Lock)
    condition: Callable[..., threading.Condition] = staticmethod(threading.Condition)
    event: Callable[[], threading.Event] = staticmethod(threading.Event)
    thread: Callable[..., threading.Thread] = staticmethod(threading.Thread)

    def now(self) -> datetime:
        """Return the time of day, in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)

    def interval(self, seconds: float) -> float:
        """Return the seconds between two looks at something that wakes nobody."""
        return seconds

    def begin(self, what: object) -> None:
        """Take note that *what* is under way, on a thread that `thread` did not make."""

    def end(self, what: object) -> None:
        """Take note that it is done, or waits for something."""

    def counted(self, task: _Task) -> _Task:
        """Return *task*, to be run on another's thread; it is under way from now on."""
        return task


#: The only one outside of tests.
SYSTEM = Clock()

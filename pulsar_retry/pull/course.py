"""How a subscription begins and ends, for the subscribers that wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from pulsar_retry.policy.checks import Duration, seconds
from pulsar_retry.pull.engine.hand import HANDLED_BY, Hand
from pulsar_retry.pull.report import DRAIN, Report, StopMode, StopRequest
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.clock import Clock

if TYPE_CHECKING:
    import asyncio

#: Why the gate of the hand is closed.
_STOPPING = "stopping"


class Course:
    """Begins a subscription, asks it to end, and knows how it ended. Thread-safe.

    The receiving thread reports what happens. The threaded subscriber and that of asyncio wait.

    Attributes:
        opened: Set when the first attempt to subscribe is over.
        ended: Set when the subscription has ended.
        opening: Like *opened*, for code that must not block a thread.
        ending: Like *ended*, likewise.
        loop: The event loop for ``async def`` handlers. None: they get a loop of their own.
        stop: The last request to stop.
        refusal: The error that prevented the subscription.
        error: The error that ended the subscription.
        report: The report, if no error ended it.
    """

    def __init__(
        self,
        run: Callable[[], None],
        hand: Hand,
        clock: Clock,
        *,
        begins_no_more: bool = False,
    ) -> None:
        """Make the course of a subscription, which *run* serves on a thread of its own.

        With *begins_no_more*, no handler begins after `ask`, in any mode.
        """
        self._begins_no_more = begins_no_more
        self._run = run
        self._hand = hand
        self._clock = clock
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_raised = False
        self.opened, self.ended = clock.event(), clock.event()
        self.opening: Future[None] = Future()
        self.ending: Future[None] = Future()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stop: StopRequest | None = None
        self.refusal: Exception | None = None
        self.error: BaseException | None = None
        self.report: Report | None = None
        fork.guard(self, "_hand", "_lock", "opened", "ended")  # nothing would set them

    @property
    def has_begun(self) -> bool:
        """Whether `begin` was called."""
        return self._thread is not None

    @property
    def is_handling(self) -> bool:
        """Whether the caller is a handler of the subscription, which cannot wait for its end."""
        return HANDLED_BY.get() is self._hand

    def begin(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Start the receiving thread, without waiting.

        Raises:
            RuntimeError: the subscription was begun before.
        """
        with self._lock:
            if self._thread is not None:
                raise RuntimeError("a subscriber runs once; make another one")
            self.loop = loop
            self._thread = self._clock.thread(
                target=self._run, name="pulsar-retry-receiver", daemon=True
            )
            self._thread.start()

    def report_opened(self) -> None:
        """Wake what waits for the first attempt to subscribe."""
        self.opened.set()
        if not self.opening.done():
            self.opening.set_result(None)

    def report_ended(self) -> None:
        """Wake everything that waits."""
        self.report_opened()
        self.ended.set()
        self.ending.set_result(None)

    def ask(self, mode: StopMode, timeout: Duration) -> None:
        """Ask the subscription to stop, without waiting."""
        now = self._clock.monotonic()
        request = StopRequest(mode, now + seconds("timeout", timeout), now)
        if mode != DRAIN or self._begins_no_more:
            self._hand.close_gate(_STOPPING)
        self.stop = request
        self._hand.is_stopping = True
        self._hand.notify()

    def refused(self) -> Exception | None:
        """Return the error that prevented the subscription, for `start` to raise."""
        self._is_raised = self._is_raised or self.refusal is not None
        return self.refusal

    def failed(self) -> BaseException | None:
        """Return the error that ended the subscription, for `result` to raise."""
        self._is_raised = self._is_raised or self.error is not None
        return self.error

    def unraised(self) -> BaseException | None:
        """Return the error that ended the subscription, if no caller has got it yet."""
        return None if self._is_raised else self.error

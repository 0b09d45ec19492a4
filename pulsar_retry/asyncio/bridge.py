"""Passes results from pulsar-client's threads, and others, to an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from pulsar_retry.asyncio.failing import failure
from pulsar_retry.errors import ConsumerClosedError, EventLoopError, ForkedError
from pulsar_retry.runtime import fork

T = TypeVar("T")

#: How many of the rare calls that pulsar-client has only in a blocking form run at a time.
_THREADS = 8

#: Seconds after which a receive that finds messages without waiting lets the event loop run.
_LOOP_TURN_INTERVAL = 0.001


class Bridge:
    """Passes calls of other threads to one event loop. Only `post` is thread-safe.

    All other methods are for the loop. Calls that arrive while the loop is busy are passed
    together. Waking a loop is a system call, and passes the interpreter's lock from thread to
    thread, which costs more than the handling of a message.

    Attributes:
        loop: The loop.
        turn_ends: When a receive should call `give_turn`, by the monotonic clock.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        fork.guard(self, "loop")
        self._posted: deque[Callable[[], None]] = deque()
        self._is_notified = False
        self.turn_ends = 0.0

    def check(self) -> None:
        """Raise unless this is called on the loop.

        Raises:
            EventLoopError: the method is called on a different loop.
            ForkedError: the bridge was made before a fork.
        """
        if asyncio.get_running_loop() is not self.loop:
            closed = (
                ", which is closed," if self.loop.is_closed() else ""
            )  # after a fork this raises
            raise EventLoopError(
                f"this object belongs to the event loop on which it was made{closed} and cannot be "
                "used on another one; make a new one there (the client can be the same)"
            )

    def post(self, call: Callable[[], None]) -> None:
        """Have *call* called on the loop, or not at all if the loop is closed. Never raises.

        An exception on one of pulsar-client's threads would end the process.
        """
        self._posted.append(call)
        if self._is_notified:
            return
        self._is_notified = True
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the loop is closed, and so nothing waits any more
            self._posted.clear()

    def _deliver(self) -> None:
        self._is_notified = False  # before the calls, so that later ones notify the loop again
        for _ in range(len(self._posted)):
            self._posted.popleft()()

    async def give_turn(self) -> None:
        """Let the rest of the event loop run."""
        await asyncio.sleep(0)
        self.turn_ends = time.monotonic() + _LOOP_TURN_INTERVAL

    def follow(
        self, source: Future[T], when_done: Callable[[], object] = lambda: None
    ) -> asyncio.Future[T]:
        """Return a future of the loop that ends as *source* does; it can be cancelled or ignored.

        Its errors have the types of `pulsar.asyncio` too. *when_done* is called before it ends.
        """
        future: asyncio.Future[T] = self.loop.create_future()

        def end() -> None:
            when_done()
            if future.done():
                return
            if (error := source.exception()) is None:
                future.set_result(source.result())
                return
            future.set_exception(failure(error) if isinstance(error, Exception) else error)
            future.exception()  # a caller that ignores the future gets no warning about it

        source.add_done_callback(lambda _: self.post(end))
        return future


class Pool:
    """Threads for blocking calls such as opening, closing, unsubscribing. Thread-safe."""

    def __init__(self, most: int = _THREADS) -> None:
        """Make it; there are at most *most* threads."""
        self._executor = ThreadPoolExecutor(most, "pulsar-retry-asyncio")
        fork.guard(self, "_executor")  # its threads do not survive

    async def run(
        self,
        function: Callable[..., T],
        *arguments: Any,
        dropped: Callable[[T], object] | None = None,
    ) -> T:
        """Call *function* on one of the threads, and await its result.

        If the caller is cancelled, the call continues. One of the threads then passes its result to
        *dropped*.

        Raises:
            ConsumerClosedError: the client is closed.
            Exception: an exception of *function*. Errors of pulsar-client also have the types of
                `pulsar.asyncio`.
        """
        try:
            running = self._executor.submit(function, *arguments)
        except ForkedError:
            raise
        except RuntimeError:
            raise failure(ConsumerClosedError("the client is closed")) from None
        try:
            return await Bridge().follow(running)
        except asyncio.CancelledError:
            if dropped is not None:
                # It is not a callback of `running`, because that would block the loop if `running`
                # is done. A closed client has closed everything that it opened.
                with contextlib.suppress(RuntimeError):
                    self._executor.submit(_drop, dropped, running)
            raise

    def close(self) -> None:
        """Accept no more calls; running calls continue."""
        self._executor.shutdown(wait=False)


def _drop(dropped: Callable[[T], object], running: Future[T]) -> None:
    if running.exception() is None:
        dropped(running.result())

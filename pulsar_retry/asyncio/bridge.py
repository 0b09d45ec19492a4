"""From pulsar-client's threads, and from ours, to an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import _pulsar

from pulsar_retry.asyncio.failing import failure, of_result
from pulsar_retry.errors import ConsumerClosedError, EventLoopError, ForkedError
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.threads import keep_thread_state

T = TypeVar("T")

#: How many of the rare calls that pulsar-client has in a blocking form only run at a time.
_THREADS = 8


class Bridge:
    """Brings what other threads say to one event loop. `post` is thread-safe, the rest its loop's.

    What comes while the loop is busy crosses in one go: to wake a loop is a system call, and makes
    two threads take the interpreter from each other, which costs more than a message.

    Attributes:
        loop: The loop.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        fork.guard(self, "loop")
        self._posted: deque[Callable[[], None]] = deque()
        self._told = False

    def check(self) -> None:
        """Raise unless this is called on the loop.

        Raises:
            EventLoopError: it is not.
            ForkedError: it was made before a fork.
        """
        if asyncio.get_running_loop() is not self.loop:
            closed = ", which is closed," if self.loop.is_closed() else ""  # forked: it raises
            raise EventLoopError(
                f"this belongs to the event loop on which it was made{closed} and cannot be used "
                "on another one; make one there instead (the client may be the same)"
            )

    def post(self, call: Callable[[], None]) -> None:
        """Have *call* called on the loop, or never if that is closed. Never raises.

        That matters: an exception on one of pulsar-client's threads ends the process.
        """
        self._posted.append(call)
        if self._told:
            return
        self._told = True
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the loop is closed, and with it all who waited
            self._posted.clear()

    def _deliver(self) -> None:
        self._told = False  # before the look: what is posted from now on is told again
        for _ in range(len(self._posted)):
            self._posted.popleft()()

    async def ask(self, function: Callable[..., None], *arguments: Any) -> Any:
        """Call one of pulsar-client's functions that take a callback, and await what that is told.

        Raises:
            pulsar.PulsarException: as the result says.
        """
        future: asyncio.Future[Any] = self.loop.create_future()

        def told(result: _pulsar.Result, value: Any = None) -> None:
            if result == _OK:
                self.post(partial(finish, future, value))
            else:
                self.post(partial(fail, future, of_result(result)))
            keep_thread_state()

        function(*arguments, told)
        return await future

    def follow(self, source: Future[T], ended: Callable[[Future[T]], None]) -> None:
        """Have *ended* called on the loop once *source* is done."""
        source.add_done_callback(lambda done: self.post(partial(ended, done)))


_OK = _pulsar.Result.Ok


def finish(future: asyncio.Future[T | None], value: T | None = None) -> None:
    """End *future*, on its loop, unless it has ended: who awaits it may be cancelled."""
    if not future.done():
        future.set_result(value)


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """End *future* with an error, unless it has ended."""
    if not future.done():
        future.set_exception(error)


class Pool:
    """A few threads for calls that block: opening, closing, unsubscribing. Thread-safe."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(_THREADS, "pulsar-retry-asyncio")
        fork.guard(self, "_executor")  # its threads do not survive

    async def run(
        self,
        function: Callable[..., T],
        *arguments: Any,
        dropped: Callable[[T], object] | None = None,
    ) -> T:
        """Call *function* on one of the threads, and await what it returns.

        If the caller is cancelled, the call goes on, and what it returns is given to *dropped* on
        one of the threads.

        Raises:
            ConsumerClosedError: the client is closed.
            Exception: what *function* raises, pulsar-client's errors by both of their names.
        """
        bridge = Bridge()
        waiter: asyncio.Future[None] = bridge.loop.create_future()
        try:
            running = self._executor.submit(function, *arguments)
        except ForkedError:
            raise
        except RuntimeError:
            raise failure(ConsumerClosedError("the client is closed")) from None
        bridge.follow(running, lambda _: finish(waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            if dropped is not None:
                # Not as a callback of `running`: if that is done, it would block the loop. A closed
                # client has closed what it opened.
                with contextlib.suppress(RuntimeError):
                    self._executor.submit(_drop, dropped, running)
            raise
        error = running.exception()
        if isinstance(error, Exception):
            raise failure(error) from error.__cause__
        return running.result()

    def close(self) -> None:
        """Take no more calls; those under way go on."""
        self._executor.shutdown(wait=False)


def _drop(dropped: Callable[[T], object], running: Future[T]) -> None:
    if running.exception() is None:
        dropped(running.result())

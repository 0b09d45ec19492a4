"""Passes results from pulsar-client's threads, and others, to an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
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

    async def ask(self, function: Callable[..., None], *arguments: Any) -> Any:
        """Call a function of pulsar-client that takes a callback, and await the callback's value.

        Raises:
            pulsar.PulsarException: the error of the result.
        """
        future: asyncio.Future[Any] = self.loop.create_future()

        def answered(result: _pulsar.Result, value: Any = None) -> None:
            if result == _OK:
                self.post(partial(finish, future, value))
            else:
                self.post(partial(fail, future, of_result(result)))
            keep_thread_state()

        function(*arguments, answered)
        return await future

    def follow(self, source: Future[T], ended: Callable[[Future[T]], None]) -> None:
        """Have *ended* called on the loop when *source* is done."""
        source.add_done_callback(lambda done: self.post(partial(ended, done)))


_OK = _pulsar.Result.Ok


def finish(future: asyncio.Future[T | None], value: T | None = None) -> None:
    """Resolve *future* on its loop, unless it is resolved: its waiter can be cancelled."""
    if not future.done():
        future.set_result(value)


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Resolve *future* with an error, unless it is resolved."""
    if not future.done():
        future.set_exception(error)


def end(future: asyncio.Future[None], flight: Future[None]) -> None:
    """Resolve *future* as the hand-off *flight* has ended. It can be ignored."""
    if (error := flight.exception()) is None:
        finish(future)
        return
    fail(future, failure(error) if isinstance(error, Exception) else error)
    if not future.cancelled():
        future.exception()  # a caller that ignores the future gets no warning about it


class Pool:
    """Threads for blocking calls such as opening, closing, unsubscribing. Thread-safe."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(_THREADS, "pulsar-retry-asyncio")
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
                # It is not a callback of `running`, because that would block the loop if `running`
                # is done. A closed client has closed everything that it opened.
                with contextlib.suppress(RuntimeError):
                    self._executor.submit(_drop, dropped, running)
            raise
        error = running.exception()
        if isinstance(error, Exception):
            raise failure(error) from error.__cause__
        return running.result()

    def close(self) -> None:
        """Accept no more calls; running calls continue."""
        self._executor.shutdown(wait=False)


def _drop(dropped: Callable[[T], object], running: Future[T]) -> None:
    if running.exception() is None:
        dropped(running.result())

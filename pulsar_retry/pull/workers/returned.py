"""The return value of a handler: an outcome, None, or work that has not been done yet."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from pulsar_retry.errors import UnfinishedError
from pulsar_retry.policy.outcomes import Defer
from pulsar_retry.pull.engine.ending import contained
from pulsar_retry.pull.engine.hand import HANDLED_BY, Hand, Slot

if TYPE_CHECKING:
    import asyncio

#: Seconds until a message is tried again if the event loop for its awaitable has ended.
_RETRY = 1.0


def is_lazy(handler: Any) -> bool:
    """Tell whether *handler* is a generator function: calling it runs none of its code."""
    return inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler)


class _LoopThread:
    """An event loop on a thread of its own, for awaitables of handlers that have no event loop.

    Attributes:
        loop: The running loop.
    """

    def __init__(self) -> None:
        import asyncio  # few need it

        made: Future[asyncio.AbstractEventLoop] = Future()
        self._over: asyncio.Event | None = None
        threading.Thread(
            target=lambda: asyncio.run(self._run(made)), name="pulsar-retry-loop", daemon=True
        ).start()
        self.loop = made.result()

    async def _run(self, made: Future[asyncio.AbstractEventLoop]) -> None:
        import asyncio

        self._over = asyncio.Event()
        made.set_result(asyncio.get_running_loop())
        await self._over.wait()

    def stop(self) -> None:
        """Cancel the tasks of the loop, and end it. Thread-safe."""
        assert self._over is not None  # it runs
        with contextlib.suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self._over.set)


class Finisher:
    """Completes what handlers return before their messages are acknowledged. Thread-safe.

    A handler that looks like ``def`` may return an awaitable, for example because a decorator hides
    that it is ``async def``, or the future of a pool. The worker waits for both.
    """

    def __init__(
        self,
        hand: Hand | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a finisher.

        Args:
            hand: Where the messages come from (`HANDLED_BY`).
            loop: Where awaitables run. If it is None, a loop on its own thread is made when it is
                needed.
            lost: Called if *loop* is found closed.
        """
        self._hand = hand
        self._loop = loop
        self._lost = lost
        self._lock = threading.Lock()
        self._own: _LoopThread | None = None

    def finish(self, result: Any, slot: Slot) -> Any:
        """Return *result*, or the final result if it is an awaitable or a future.

        The worker thread of *slot* calls this, and waits.

        Raises:
            Exception: the error of the awaitable or the future.
            UnfinishedError: the result is a generator, whose code has not run.
            Defer: the event loop has ended.
        """
        if isinstance(result, Future):
            return self.finish(result.result(), slot)
        if not inspect.isawaitable(result):
            return _checked(result)
        import asyncio  # few need it

        coroutine = contained(self.awaited(result))
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._running_loop())
        except RuntimeError:
            coroutine.close()
            self._lost()
            raise Defer(_RETRY) from None

        def interrupt() -> None:
            future.cancel()

        before, slot.interrupt = slot.interrupt, interrupt
        try:
            return future.result()
        finally:
            slot.interrupt = before

    async def awaited(self, result: Any) -> Any:
        """Do what `finish` does, on an event loop."""
        HANDLED_BY.set(self._hand)
        while True:
            if isinstance(result, Future):
                import asyncio

                result = await asyncio.wrap_future(result)
            elif inspect.isawaitable(result):
                result = await result
            else:
                return _checked(result)

    def finishing(self, handler: Callable[[Any], Any], slot: Slot) -> Callable[[Any], Any]:
        """Return *handler* with a wrapper that waits until all is done; for one worker thread."""

        def handle(message: Any) -> Any:
            result = handler(message)
            return result if result is None else self.finish(result, slot)

        return handle

    def finishing_async(
        self, handler: Callable[[Any], Awaitable[Any]]
    ) -> Callable[[Any], Awaitable[Any]]:
        """Do what `finishing` does, for a handler that is ``async def``."""

        async def handle(message: Any) -> Any:
            result = await handler(message)
            return result if result is None else await self.awaited(result)

        return handle

    def close(self) -> None:
        """End the finisher's own loop, if there is one; what still runs there is cancelled."""
        with self._lock:
            if self._own is not None:
                self._own.stop()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is not None:
            return self._loop
        with self._lock:
            if self._own is None:
                self._own = _LoopThread()
            return self._own.loop


def _checked(result: Any) -> Any:
    """Return *result*.

    Raises:
        UnfinishedError: *result* is a generator.
    """
    if not (inspect.isgenerator(result) or inspect.isasyncgen(result)):
        return result
    kind = "a generator" if inspect.isgenerator(result) else "an async generator"
    raise UnfinishedError(
        f"the handler returned {kind} that has not run: a handler must do its work before it "
        "returns (does it contain a yield?)"
    )

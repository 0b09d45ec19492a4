"""What the classes for asyncio share: results for an event loop, errors, and signatures."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import WRAPPER_ASSIGNMENTS, cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import pulsar
import pulsar.asyncio

from pulsar_retry.errors import ConsumerClosedError, EventLoopError, ForkedError
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.upstream import error_of

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")
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


# -- errors of both pulsar and pulsar.asyncio -----------------------------------------------------


def failure(error: Exception) -> Exception:
    """Return *error* with a type that is an error of both `pulsar` and `pulsar.asyncio`."""
    if not isinstance(error, pulsar.PulsarException) or type(error).__module__ == __name__:
        return error  # an error of this module has both types already
    its_own: Any = type(error)
    kind: Any = _both(its_own)
    both: Exception = kind.__new__(kind, *error.args)
    both.__dict__.update(error.__dict__, _result=_result(error), _msg=None)
    both.__cause__, both.__context__ = error.__cause__, error.__context__
    return both.with_traceback(error.__traceback__)


def _result(error: BaseException | None) -> pulsar.Result:
    """Return the result code of *error*, or of the error behind it."""
    while error is not None:
        for kind in type(error).__mro__:
            if kind.__name__ in pulsar.Result.__members__:
                return pulsar.Result.__members__[kind.__name__]
        error = error.__cause__
    return pulsar.Result.UnknownError


def of_result(result: pulsar.Result) -> Exception:
    """Return the error for *result*."""
    return failure(error_of(result))


@contextlib.contextmanager
def translating_errors() -> Iterator[None]:
    """Give pulsar-client's errors in this block both types."""
    try:
        yield
    except pulsar.PulsarException as error:
        raise failure(error) from error.__cause__


@cache
def _both(kind: Any) -> type[Exception]:
    """Return a class of both families for one of pulsar-client's error classes."""
    members = {"__module__": __name__, "__doc__": kind.__doc__, "__str__": kind.__str__}
    return type(kind.__name__, (kind, pulsar.asyncio.PulsarException), members)


# -- signatures of the blocking twins -------------------------------------------------------------


def taking(
    original: Callable[Concatenate[Any, P], Any], assigned: Sequence[str] = WRAPPER_ASSIGNMENTS
) -> Callable[[Callable[Concatenate[Self, ...], R]], Callable[Concatenate[Self, P], R]]:
    """Give a method the parameters and docstring of *original*, but keep its return type.

    *assigned* are the attributes of *original* that it gets besides.
    """

    def decorate(method: Callable[..., R]) -> Callable[Concatenate[Self, P], R]:
        returns = inspect.signature(method).return_annotation
        made: Any = wraps(original, assigned)(method)
        made.__signature__ = inspect.signature(original).replace(return_annotation=returns)
        return cast("Callable[Concatenate[Self, P], R]", made)

    return decorate

"""What an error of a handler means: the failure of a message, or the end of the subscription."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from pulsar_retry.errors import HandlerError, LeaseExpired, WorkerCrashedError, shown, trace_of
from pulsar_retry.letters.facts import Facts
from pulsar_retry.policy.outcomes import Failure, Reject, Retry
from pulsar_retry.runtime.upstream import undecodable
from pulsar_retry.wire.properties import FAILURE_CRASHES, count_of
from pulsar_retry.wire.stack import of_handler

#: The reason of a dead letter whose message has killed too many worker processes.
CRASH_LOOP = "crash-loop"

#: A message that has killed so many worker processes is not handled again.
MAX_CRASHES = 3

#: These exceptions end a program, and in the same way they end a subscription.
ENDS = (SystemExit, KeyboardInterrupt)


class Ending(Exception):  # it only carries an error
    """Carries an error of a handler that ends the subscription.

    Attributes:
        error: The error, which `result` raises.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def ending(error: BaseException) -> BaseException | None:
    """Return the error that ends the subscription; None if *error* does not end it."""
    if isinstance(error, Ending):
        return error.error
    return error if isinstance(error, ENDS) else None


async def contained(handler: Callable[[Any], Awaitable[Any]], message: Any) -> Any:
    """Call a handler in a task, and convert errors that would end more than this task.

    `ENDS` would end the event loop. GeneratorExit and CancelledError would close or cancel what
    awaits the task.

    Raises:
        Ending: one of `ENDS` was raised.
        HandlerError: another error was raised that is no `Exception`.
    """
    try:
        return await handler(message)
    except Exception:
        raise
    except ENDS as error:
        raise Ending(error) from None
    except BaseException as error:
        if _is_cancelled():
            raise
        raise failed_with(error) from error


def _is_cancelled() -> bool:
    """Tell whether the current coroutine is being cancelled, or is closed outside of a loop."""
    import asyncio  # few need it

    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop is running
        return True
    return task is None or task.cancelling() > 0


def failed_with(error: BaseException) -> Exception:
    """Return what a message has failed with whose handler raised *error*.

    It is the same wherever the handler runs: the traceback begins at the handler, the error of a
    broken payload is told as such, and what would end a thread, a task or a process becomes a
    `HandlerError`.
    """
    is_own = isinstance(error, HandlerError)  # raised around the handler, not in it
    trace = None if is_own else of_handler(trace_of(error))
    BaseException.with_traceback(error, trace)  # also if it is frozen
    if isinstance(error, Exception):
        return undecodable(error) or error
    wrapped = HandlerError(f"the handler raised {shown(error, repr)}")
    wrapped.__cause__ = error
    return wrapped


def failure_of(facts: Facts, error: BaseException, now: datetime) -> Failure:
    """Return what the policy has to know about a message whose handler raised *error*."""
    failed = failed_with(error)
    if isinstance(failed, LeaseExpired | WorkerCrashedError):
        # These use up an attempt, even if the policy does not retry such errors.
        outcome = Retry()
        outcome.__cause__ = failed
        failed = outcome
    return Failure(failed, when=now, age=now - facts.published, key=facts.key)


class CrashLoop(Reject):
    """The message has killed too many worker processes.

    Attributes:
        crashes: How many.
    """

    def __init__(self, crashes: int) -> None:
        super().__init__(CRASH_LOOP)
        self.crashes = crashes


def check_crashes(facts: Facts) -> None:
    """Check that a message may be handled by a worker process.

    Raises:
        CrashLoop: it has killed too many of them.
    """
    crashes = crashes_of(facts.properties) + facts.crashes
    if crashes >= MAX_CRASHES:
        raise CrashLoop(crashes)


def crashes_of(properties: Mapping[str, str]) -> int:
    """Return how many worker processes a message has killed, as its letter says."""
    return count_of(properties.get(FAILURE_CRASHES)) or 0

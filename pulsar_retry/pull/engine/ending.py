"""What an error of a handler means: the failure of a message, or the end of the subscription."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime
from typing import Any

from pulsar_retry.errors import HandlerError, LeaseExpired, WorkerCrashedError
from pulsar_retry.letters.facts import Facts
from pulsar_retry.policy.outcomes import Failure, Retry
from pulsar_retry.runtime.decoding import undecodable

#: These exceptions end a program, and in the same way they end a subscription.
ENDS = (SystemExit, KeyboardInterrupt)


class Ending(Exception):  # noqa: N818 - it only carries an error
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


async def contained(awaitable: Awaitable[Any]) -> Any:
    """Await *awaitable* in a task, and convert `ENDS`, which would end the event loop.

    Raises:
        Ending: one of `ENDS` was raised.
    """
    try:
        return await awaitable
    except ENDS as error:
        raise Ending(error) from None


def failure_of(facts: Facts, error: BaseException, now: datetime) -> Failure:
    """Return what the policy has to know about a message whose handler raised *error*."""
    if (broken := undecodable(error)) is not None:
        error = broken
    elif isinstance(error, LeaseExpired | WorkerCrashedError):
        # These use up an attempt, even if the policy does not retry such errors.
        outcome = Retry()
        outcome.__cause__ = error
        error = outcome
    elif not isinstance(error, Exception):
        # Such an error would end a thread. Here it is the failure of one message.
        wrapped = HandlerError(f"the handler raised {error!r}")
        wrapped.__cause__ = error
        error = wrapped
    return Failure(error, when=now, age=now - facts.published, key=facts.key)

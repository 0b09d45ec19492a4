"""Errors of handlers that end the subscription instead of failing one message."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

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

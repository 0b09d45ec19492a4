"""Errors of handlers that end the subscription instead of failing one message."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

#: What ends a program that calls a function directly ends a subscription that calls it.
ENDS = (SystemExit, KeyboardInterrupt)


class Ending(Exception):  # noqa: N818 - it only carries one
    """Carries an error that is to end the subscription to where that is done.

    Attributes:
        error: The error, which `result` raises.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def ending(error: BaseException) -> BaseException | None:
    """Return what ends the subscription, if *error* does."""
    if isinstance(error, Ending):
        return error.error
    return error if isinstance(error, ENDS) else None


async def contained(awaitable: Awaitable[Any]) -> Any:
    """Await something in a task of its own: `ENDS` in a task would end its event loop.

    Raises:
        Ending: one of `ENDS` was raised.
    """
    try:
        return await awaitable
    except ENDS as error:
        raise Ending(error) from None

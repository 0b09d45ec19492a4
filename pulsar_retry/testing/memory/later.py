"""Makes asynchronous variants of pulsar-client's methods, with a callback for the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import _pulsar


def later(method: Callable[..., Any], *, gives: bool = False) -> Callable[..., None]:
    """Return a function that calls *method* at once and passes the result to its last argument.

    The callback gets the result code; with *gives* it also gets what *method* returns.
    """

    def asynchronous(self: Any, *arguments: Any) -> None:
        *given, callback = arguments
        try:
            value = method(self, *given)
        except _pulsar.PulsarException as error:
            result = getattr(_pulsar.Result, type(error).__name__, _pulsar.Result.UnknownError)
            value = None
        else:
            result = _pulsar.Result.Ok
        if gives:
            callback(result, value)
        else:
            callback(result)

    return asynchronous

"""How the in-memory broker calls back: after its lock is released, and as pulsar-client does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import _pulsar


class QuietLock:
    """A re-entrant lock that runs callbacks only after its release. A context manager."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._calls: list[Callable[[], object]] = []

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call *function* when the lock is released. The caller must hold the lock."""
        self._calls.append(partial(function, *arguments))

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        calls: list[Callable[[], object]] = []
        if not self._depth:
            calls, self._calls = self._calls, calls
        self._lock.release()
        for call in calls:
            call()


def later(method: Callable[..., Any], *, gives: bool = False) -> Callable[..., None]:
    """Return an asynchronous variant of a method of pulsar-client, with a callback.

    It calls *method* at once, and passes the result to its last argument.

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

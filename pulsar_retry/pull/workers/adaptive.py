"""Measures handlers, and finds out how many of them should run at a time."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from pulsar_retry.errors import shown
from pulsar_retry.policy.outcomes import Outcome, unwrapped
from pulsar_retry.pull.rules.limit import AdaptiveLimit
from pulsar_retry.runtime.clock import Clock

_log = logging.getLogger("pulsar_retry")


class Governor:
    """The adaptive limit of one subscriber. Thread-safe."""

    def __init__(self, maximum: int, changed: Callable[[], None], clock: Clock) -> None:
        """Make one; *changed* is called when the limit has changed, on any thread."""
        self._limit = AdaptiveLimit(maximum)
        self._changed = changed
        self._now = clock.monotonic
        self._lock = threading.Lock()
        self._running = 0

    @property
    def limit(self) -> int:
        """How many handlers may run at a time."""
        with self._lock:
            return self._limit.limit

    def gauges(self) -> dict[str, float]:
        """Return the limit, for metrics."""
        return {"concurrency_limit": float(self.limit)}

    def timed(self, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return *handler* with a wrapper that measures it."""

        def handle(message: Any) -> Any:
            with self._measured():
                return handler(message)

        return handle

    def timed_async(
        self, handler: Callable[[Any], Awaitable[Any]]
    ) -> Callable[[Any], Awaitable[Any]]:
        """Do what `timed` does, for a handler that is ``async def``."""

        async def handle(message: Any) -> Any:
            with self._measured():
                return await handler(message)

        return handle

    @contextlib.contextmanager
    def _measured(self) -> Iterator[None]:
        """Measure the handler that is called in this block."""
        with self._lock:
            self._running += 1
        began = self._now()
        try:
            yield
        except BaseException as error:
            self._end(began, error)
            raise
        self._end(began, None)

    def _end(self, began: float, error: BaseException | None) -> None:
        if isinstance(error, Exception):
            error = unwrapped(error)
        failed = error is not None and not isinstance(error, Outcome)
        with self._lock:
            before, running = self._limit.limit, self._running
            self._running -= 1
            self._limit.record(began, self._now(), failed=failed, running=running)
            limit = self._limit.limit
        if limit != before:
            try:
                self._changed()
            except Exception as trouble:  # noqa: BLE001 - it is not the message's failure
                _log.warning("the number of workers could not be changed: %s", shown(trouble))

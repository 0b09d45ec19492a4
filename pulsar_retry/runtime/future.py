"""The future that resolves at the end of a hand-off."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from pulsar_retry.runtime.fork import free_in_child

_FINISHED = "FINISHED"

_log = logging.getLogger("concurrent.futures")  # where `Future` logs what its callbacks raise

#: Guards the creation of every future's condition, for a very short time. It is re-entrant, because
#: a garbage collection can run meanwhile, and its finalizers can use a future.
_guard = free_in_child(threading.RLock())


class LetterFuture(Future[None]):
    """The result of a hand-off. It cannot be cancelled: a letter in flight cannot be called back.

    A normal future creates a condition and a dozen objects with it. Most of these are never used,
    because callers wait for the last future only. Here the first use creates the condition; the
    first callback does not need it.
    """

    # Class attributes, which an instance uses until it sets its own values. This makes it cheap.
    _state = "PENDING"
    _result = None
    _exception = None
    _first: Callable[[Future[None]], Any] | None = None

    def __init__(
        self, new_condition: Callable[[], threading.Condition] = threading.Condition
    ) -> None:
        self._new_condition = new_condition
        self._made: threading.Condition | None = None  # replaces Future's attribute, see above

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]  # Future's is writable
        if self._made is not None:
            return self._made
        condition = self._new_condition()
        with _guard:
            if self._made is None:
                self._waiters = []
                self._done_callbacks = [] if self._first is None else [self._first]
                self._made = condition
            return self._made

    def cancel(self) -> bool:
        """Return False, because a hand-off cannot be cancelled."""
        return False

    def succeed(self) -> None:
        """Resolve the future without an error."""
        with _guard:
            first = self._first
            if is_simple := self._made is None:  # so there are no waiters, and one callback at most
                self._state, self._first = _FINISHED, None
        if not is_simple:
            self.set_result(None)
            self._forget()
        elif first is not None:
            self._call(first)

    def set_exception(self, exception: BaseException | None) -> None:
        """Resolve the future with an error."""
        super().set_exception(exception)
        self._forget()

    def _forget(self) -> None:
        """Forget the callbacks, which were called: they can have the message, which has this."""
        with _guard:
            self._first, self._done_callbacks = None, []

    def add_done_callback(self, fn: Callable[[Future[None]], Any]) -> None:
        """Have *fn* called with this future when it is resolved, or now if it is already."""
        with _guard:
            if self._made is None and self._first is None and self._state != _FINISHED:
                self._first = fn
                return
        super().add_done_callback(fn)

    def _call(self, fn: Callable[[Future[None]], Any]) -> None:
        """Call a callback as `Future` does."""
        try:
            fn(self)
        except Exception:  # noqa: BLE001 - as `Future` does
            _log.exception("exception calling callback for %r", self)

    def done(self) -> bool:
        """Tell whether the future is resolved."""
        return self._state == _FINISHED

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, or None; wait at most *timeout* seconds."""
        if self._state == _FINISHED and self._exception is None:
            return None  # as in `result`
        return super().exception(timeout)

    def result(self, timeout: float | None = None) -> None:
        """Return None, or raise the error; wait at most *timeout* seconds."""
        # A future without an error needs neither a wait nor a condition.
        if self._state != _FINISHED or self._exception is not None:
            super().result(timeout)

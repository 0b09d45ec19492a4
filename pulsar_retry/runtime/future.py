"""The future that resolves at the end of a hand-off."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_FINISHED = "FINISHED"

#: Guards the creation of every future's condition, for a very short time. It is re-entrant, because
#: a garbage collection can run meanwhile, and its finalizers can use a future.
_guard = threading.RLock()


class LetterFuture(Future[None]):
    """The result of a hand-off. It cannot be cancelled: a letter in flight cannot be called back.

    A normal future creates a condition and a dozen objects with it. Most of these are never used,
    because callers wait for the last future only. Here the first use creates the condition.
    """

    # Class attributes, which an instance uses until it sets its own values. This makes it cheap.
    _state = "PENDING"
    _result = None
    _exception = None

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
                self._done_callbacks: list[Callable[[Future[None]], Any]] = []
                self._made = condition
            return self._made

    def cancel(self) -> bool:
        """Return False, because a hand-off cannot be cancelled."""
        return False

    def succeed(self) -> None:
        """Resolve the future without an error."""
        with _guard:
            if self._made is None:  # so there are no waiters and no callbacks
                self._state = _FINISHED
                return
        self.set_result(None)

    def done(self) -> bool:
        """Tell whether the future is resolved."""
        return self._state == _FINISHED

    def result(self, timeout: float | None = None) -> None:
        """Return None, or raise the error; wait at most *timeout* seconds."""
        # A future without an error needs neither a wait nor a condition.
        if self._state != _FINISHED or self._exception is not None:
            super().result(timeout)

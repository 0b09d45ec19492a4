"""The future that the end of a hand-off is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_FINISHED = "FINISHED"

#: Guards the making of every future's condition, for an instant each. Re-entrant: the collector of
#: garbage may run meanwhile, and what it finalizes may look at a future.
_guard = threading.RLock()


class LetterFuture(Future[None]):
    """The end of a hand-off. It cannot be cancelled: a letter on its way cannot be called back.

    A future makes a condition and a dozen objects with it, though most of these are never waited
    for: their caller waits for the last one. Here the first who looks makes the condition.
    """

    # Until the first look a future is these and nothing of its own.
    _state = "PENDING"
    _result = None
    _exception = None

    def __init__(
        self, new_condition: Callable[[], threading.Condition] = threading.Condition
    ) -> None:
        self._new_condition = new_condition
        self._made: threading.Condition | None = None  # in place of Future's own, see above

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
        """Return False."""
        return False

    def succeed(self) -> None:
        """End without an error."""
        with _guard:
            if self._made is None:  # so nobody waits, and there are no callbacks
                self._state = _FINISHED
                return
        self.set_result(None)

    def done(self) -> bool:
        """Tell whether it has ended."""
        return self._state == _FINISHED

    def result(self, timeout: float | None = None) -> None:
        """Return nothing, or raise the error; wait *timeout* seconds at most."""
        if self._state != _FINISHED or self._exception is not None:  # else there is no need to look
            super().result(timeout)

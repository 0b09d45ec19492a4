"""Handlers that record their calls, for tests of the subscriber."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

#: Seconds to wait for something that has to happen.
SOON = 90.0


class Notes:
    """A handler that remembers the messages it was called with. Thread-safe.

    Attributes:
        seen: The payloads, in order, once per attempt.
        attempts: How often each payload was seen.
    """

    def __init__(self, act: Callable[[Any], Any] = lambda _message: None) -> None:
        """Make a handler that calls *act*."""
        self._act = act
        self._changed = threading.Condition()
        self.seen: list[bytes] = []
        self.attempts: Counter[bytes] = Counter()

    def note(self, message: Any) -> None:
        """Remember a message."""
        payload = message.data()
        with self._changed:
            self.seen.append(payload)
            self.attempts[payload] += 1
            self._changed.notify_all()

    def __call__(self, message: Any) -> Any:
        self.note(message)
        return self._act(message)

    def wait_for(self, count: int) -> None:
        """Wait until there were this many attempts."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.seen) >= count, SOON), self.seen


def fails(message: Any) -> None:
    """Fail at every attempt."""
    raise ValueError(f"cannot do {message.data()!r}")

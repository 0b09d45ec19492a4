"""How many messages succeeded and failed a short time ago. Pure: the caller passes the time."""

from __future__ import annotations

from collections import deque

import attrs

#: The window is divided into this many parts. Results older than the window are forgotten one part
#: at a time.
_PARTS = 10


@attrs.define
class _Part:
    """The results in one part of the window.

    Attributes:
        since: When the part began.
        successes: How many messages succeeded.
        failures: How many messages failed.
    """

    since: float
    successes: int = 0
    failures: int = 0


class RecentResults:
    """The results of the last *window* seconds.

    Attributes:
        successes: How many messages succeeded.
        failures: How many messages failed.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._parts: deque[_Part] = deque()
        self.successes = self.failures = 0

    def add(self, successes: int, failures: int, now: float) -> None:
        """Count the messages that were handled since the last call."""
        parts, window = self._parts, self._window
        while parts and parts[0].since <= now - window:
            old = parts.popleft()
            self.successes -= old.successes
            self.failures -= old.failures
        if not parts or parts[-1].since <= now - window / _PARTS:
            parts.append(_Part(now))
        parts[-1].successes += successes
        parts[-1].failures += failures
        self.successes += successes
        self.failures += failures

    def fails(self, share: float) -> bool:
        """Tell whether at least this share of the messages failed."""
        return self.failures >= share * (self.successes + self.failures)

    def clear(self) -> None:
        """Forget all results."""
        self._parts.clear()
        self.successes = self.failures = 0

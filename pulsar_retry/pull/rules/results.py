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
    """The results of the last *window* seconds."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._parts: deque[_Part] = deque()

    def add(self, successes: int, failures: int, now: float) -> None:
        """Count the messages that were handled since the last call."""
        parts, window = self._parts, self._window
        while parts and parts[0].since <= now - window:
            parts.popleft()
        if not parts or parts[-1].since <= now - window / _PARTS:
            parts.append(_Part(now))
        parts[-1].successes += successes
        parts[-1].failures += failures

    def totals(self) -> tuple[int, int]:
        """Return how many messages succeeded, and how many failed."""
        return sum(part.successes for part in self._parts), sum(
            part.failures for part in self._parts
        )

    def clear(self) -> None:
        """Forget all results."""
        self._parts.clear()

"""Letters in hand, for cumulative acknowledgement on the Shared retry topic."""

from __future__ import annotations

import threading
from typing import Any

from pulsar_retry.runtime.raw import position_of


class DeliveredLetters:
    """Remembers unacknowledged letters in the order of their delivery. Thread-safe.

    The retry topic is always Shared, so the broker has no cumulative acknowledgement for it. For an
    Exclusive or Failover consumer, "up to this letter" means the letters delivered before it.
    """

    def __init__(self) -> None:
        self._ids: dict[tuple[int, int, int, int], Any] = {}
        self._lock = threading.Lock()

    def add(self, message_id: Any) -> None:
        """Record a delivery; a redelivered letter moves to the end."""
        key = position_of(message_id)
        with self._lock:
            self._ids.pop(key, None)
            self._ids[key] = message_id

    def remove(self, message_id: Any) -> None:
        """Forget a settled letter."""
        with self._lock:
            self._ids.pop(position_of(message_id), None)

    def clear(self) -> None:
        """Forget all letters, because they will be delivered again."""
        with self._lock:
            self._ids.clear()

    def up_to(self, message_id: Any) -> list[Any]:
        """Return the ids up to and including this one; only this id if it is unknown."""
        last = position_of(message_id)
        with self._lock:
            if last not in self._ids:
                return [message_id]
            keys = list(self._ids)
            return [self._ids[key] for key in keys[: keys.index(last) + 1]]

"""Warns before the broker stops a consumer that has too many unacknowledged messages."""

from __future__ import annotations

import logging
import sys

_log = logging.getLogger("pulsar_retry")

#: The broker's default for maxUnackedMessagesPerConsumer.
DEFAULT_LIMIT = 50_000

#: Warn at this part of the limit, and not again before the count was down to half the limit.
_WARN_AT = 0.8
_WARN_AGAIN_BELOW = 0.5

#: Near the limit: the part of the limit that is received between two checks.
_STEP = 0.05


class StallWatch:
    """Compares the number of unsettled messages with the broker's limit."""

    def __init__(self, limit: int, subscription: str) -> None:
        """Watch the *limit* (0: no limit) of a consumer of *subscription*."""
        self._limit = limit
        self._subscription = subscription
        self._is_near = False

    def next_look(self, unsettled: int) -> int:
        """Return how many more messages can be received before the next `look`."""
        if not self._limit:
            return sys.maxsize
        if self._is_near:
            return max(1, round(self._limit * _STEP))
        return max(1, round(self._limit * _WARN_AT) - unsettled)

    def look(self, unsettled: int, pending: int) -> None:
        """Log a warning if the number is near the limit.

        Args:
            unsettled: The number of messages that were received and are not settled.
            pending: How many of them are nacked.
        """
        if self._is_near:
            self._is_near = unsettled > self._limit * _WARN_AGAIN_BELOW
            return
        if not self._limit or unsettled < round(self._limit * _WARN_AT):
            return
        self._is_near = True
        _log.warning(
            "%d messages of subscription %s are unacknowledged, %d of them nacked and waiting; at "
            "%d the broker stops delivering (maxUnackedMessagesPerConsumer; for all consumers "
            "together maxUnackedMessagesPerSubscription). Settle them, use reconsume_later for "
            "long delays, or raise the limit and max_unacked_messages",
            unsettled,
            self._subscription,
            pending,
            self._limit,
        )

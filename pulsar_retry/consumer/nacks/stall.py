"""Warns before the broker stops a consumer that has too many unacknowledged messages."""

from __future__ import annotations

import logging
import sys

_log = logging.getLogger("pulsar_retry")

#: The broker's own default of maxUnackedMessagesPerConsumer.
DEFAULT_LIMIT = 50_000

#: From this part of the limit on there is a warning, and another one not before it was half.
_NEAR = 0.8
_FAR = 0.5

#: The part of the limit that is received from one look to the next while it is near.
_STEP = 0.05


class StallWatch:
    """Compares what is unsettled with a limit of the broker's."""

    def __init__(self, limit: int, subscription: str) -> None:
        """Watch the *limit* (0: none) of a consumer of *subscription*."""
        self._limit = limit
        self._subscription = subscription
        self._is_near = False

    def next_look(self, unsettled: int) -> int:
        """Return how many more messages may be received before the next `look`."""
        if not self._limit:
            return sys.maxsize
        if self._is_near:
            return max(1, round(self._limit * _STEP))
        return max(1, round(self._limit * _NEAR) - unsettled)

    def look(self, unsettled: int, pending: int) -> None:
        """Warn if the limit has come near.

        Args:
            unsettled: Messages received and not settled.
            pending: How many of them are nacked.
        """
        if self._is_near:
            self._is_near = unsettled > self._limit * _FAR
            return
        if not self._limit or unsettled < round(self._limit * _NEAR):
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

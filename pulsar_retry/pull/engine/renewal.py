"""Keeps lanes in order when the connection to the topic is lost."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import _pulsar

#: Answers of a broker or a client that will not say more.
_NEVER = (
    _pulsar.Result.AlreadyClosed,
    _pulsar.Result.UnsupportedVersionError,
    _pulsar.Result.AuthorizationError,
    _pulsar.Result.OperationNotSupported,
)

#: Seconds between two requests to the broker.
_PAUSE = 0.01


class Renewal:
    """Finds out when nothing is left of a lost connection in the queue of a raw consumer.

    pulsar-client says that a consumer is connected again when it asks the broker to subscribe, but
    empties the queue only when the answer comes. What is received meanwhile is behind the messages
    that were dropped, so it would overtake them. The broker answers a request about the
    subscription only after that.

    Thread-safe.
    """

    def __init__(self, raw: Any, now: Callable[[], float], over: Callable[[], None]) -> None:
        """Make one for *raw*; *over* is called, on any thread, when nothing is left."""
        self._raw, self._now, self._over = raw, now, over
        self._is_pending = False
        self._losses = 0
        self._asked: set[bool] = set()
        self._next = 0.0

    def lost(self) -> None:
        """Record that the connection was lost."""
        self._is_pending = True
        self._losses += 1

    def is_over(self) -> bool:
        """Tell whether nothing is left; if that is not known, ask the broker."""
        if not self._is_pending:
            return True
        # Without a connection, a request waits for one, or fails because the consumer is closed.
        is_connected, now = self._raw.is_connected(), self._now()
        if is_connected not in self._asked and now >= self._next:
            self._asked.add(is_connected)
            self._next = now + _PAUSE
            losses, take = self._losses, weakref.WeakMethod(self._answered)

            def answered(result: Any, _last: Any = None) -> None:
                if (method := take()) is not None:
                    method(result, is_connected, losses)

            self._raw.get_last_message_id_async(answered)
        return not self._is_pending

    def _answered(self, result: Any, was_connected: bool, losses: int) -> None:
        self._asked.discard(was_connected)
        is_whole = result == _pulsar.Result.Ok and losses == self._losses
        if is_whole or result in _NEVER:
            self._is_pending = False
            self._over()

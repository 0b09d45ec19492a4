"""What is asked of the broker about a connection that is lost: why, and when it is whole again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import _pulsar
import pulsar

#: Errors of an open subscription that do not go away by themselves.
FATAL = (
    pulsar.AuthenticationError,
    pulsar.AuthorizationError,
    pulsar.TopicNotFound,
    pulsar.TopicTerminated,
)

#: Errors of the broker, or of pulsar-client, that may go away soon.
TRANSIENT = (
    pulsar.Timeout,
    pulsar.ConnectError,
    pulsar.NotConnected,
    pulsar.ReadError,
    pulsar.LookupError,
    pulsar.ServiceUnitNotReady,
    pulsar.TooManyLookupRequestException,
    pulsar.BrokerMetadataError,
    pulsar.BrokerPersistenceError,
    pulsar.UnknownError,
)

#: Seconds between two attempts to subscribe: the first pause, and the longest.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0

#: How many such errors in a row count, at growing pauses. A topic that moves to another broker is
#: missing for a moment, and a broker that starts has no namespaces for some seconds.
ENOUGH_ERRORS = 5

#: Answers of a broker or a client that will not say more.
_NEVER = (
    _pulsar.Result.AlreadyClosed,
    _pulsar.Result.UnsupportedVersionError,
    _pulsar.Result.AuthorizationError,
    _pulsar.Result.OperationNotSupported,
)

#: Seconds between two requests to the broker.
_PAUSE = 0.01


class ConnectionProbe:
    """Asks the broker for the topics of a consumer that has lost its connection.

    The caller does not wait for an answer: while a broker is away, an answer takes as long as the
    operation time-out, and messages of other topics and partitions arrive meanwhile.

    The pauses between requests grow, because requests can delay the reconnection. For each request,
    pulsar-client tries the brokers of a service URL in turn, and begins after the broker that it
    tried last. If only one broker is alive, each request of the probe ends there. The reconnection
    then begins at a dead broker, fails, and doubles its wait.

    Attributes:
        is_idle: Whether the connection is not known to be lost.
    """

    def __init__(self, probe: Callable[[], Future[None]], now: Callable[[], float]) -> None:
        """Make a probe; *probe* asks the broker, and returns the future of the answer."""
        self.is_idle = True
        self._probe = probe
        self._now = now
        self._answer: Future[None] | None = None
        self._next = 0.0
        self._pause = FIRST_PAUSE
        self._denials = 0

    def look(self) -> None:
        """Ask the broker if the pause is over, and check the answer if there is one.

        Raises:
            pulsar.PulsarException: the broker has said several times in a row that the subscription
                cannot go on.
        """
        self.is_idle = False
        if self._answer is None:
            if self._now() < self._next:
                return
            self._answer = self._probe()
        if not self._answer.done():
            return
        answer, self._answer = self._answer, None
        try:
            answer.result()
        except FATAL:
            self._denials += 1
            if self._denials >= ENOUGH_ERRORS:
                raise
            if self._denials == 1:
                self._pause = FIRST_PAUSE
        except pulsar.PulsarException:
            self._denials = 0  # the broker is unreachable, and may come back
        else:
            self._denials = 0
        self._next = self._now() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def doubt(self) -> None:
        """Reset the count of errors, because a message has arrived."""
        self._denials = 0

    def end(self) -> None:
        """Reset everything, because the connection is back."""
        self.is_idle = True
        self._answer = None
        self._next = 0.0
        self._pause = FIRST_PAUSE
        self._denials = 0


class Renewal:
    """Finds out when nothing is left of a lost connection in the queue of a raw consumer.

    pulsar-client says that a consumer is connected again when it asks the broker to subscribe, but
    empties the queue only when the answer comes. What is received meanwhile is behind the messages
    that were dropped, so it would overtake them. The broker answers a request about the
    subscription only after that.

    Thread-safe.

    Attributes:
        is_pending: Whether something may be left, as far as it is known.
    """

    def __init__(self, raw: Any, now: Callable[[], float], over: Callable[[], None]) -> None:
        """Make one for *raw*; *over* is called, on any thread, when nothing is left."""
        self._raw, self._now, self._over = raw, now, over
        self.is_pending = False
        self._losses = 0
        self._asked: set[bool] = set()
        self._next = 0.0

    def lost(self) -> None:
        """Record that the connection was lost."""
        self.is_pending = True
        self._losses += 1

    def is_over(self) -> bool:
        """Tell whether nothing is left; if that is not known, ask the broker."""
        if not self.is_pending:
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
        return not self.is_pending

    def _answered(self, result: Any, was_connected: bool, losses: int) -> None:
        self._asked.discard(was_connected)
        is_whole = result == _pulsar.Result.Ok and losses == self._losses
        if is_whole or result in _NEVER:
            self.is_pending = False
            self._over()

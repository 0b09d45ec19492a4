"""Finds out why a connection is lost: pulsar-client reconnects for ever, without a report."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

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

#: How many such errors in a row count. A topic that moves to another broker is missing for a
#: moment.
ENOUGH_ERRORS = 3


class ConnectionProbe:
    """Asks the broker for the topics of a consumer that has lost its connection.

    The caller does not wait for an answer: while a broker is away, an answer takes as long as the
    operation time-out, and messages of other topics and partitions arrive meanwhile.

    The pauses between requests grow, because requests can delay the reconnection. For each request,
    pulsar-client tries the brokers of a service URL in turn, and begins after the broker that it
    tried last. If only one broker is alive, each request of the probe ends there. The reconnection
    then begins at a dead broker, fails, and doubles its wait.
    """

    def __init__(self, probe: Callable[[], Future[None]], now: Callable[[], float]) -> None:
        """Make a probe; *probe* asks the broker, and returns the future of the answer."""
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
        self._answer = None
        self._next = 0.0
        self._pause = FIRST_PAUSE
        self._denials = 0

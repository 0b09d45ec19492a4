"""Why a consumer has lost its connection: pulsar-client reconnects for ever, and tells nobody."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import pulsar

#: A broker that says one of these of an open subscription will go on saying it.
FATAL = (
    pulsar.AuthenticationError,
    pulsar.AuthorizationError,
    pulsar.TopicNotFound,
    pulsar.TopicTerminated,
)

#: How often in a row it has to say so: a topic that moves is nowhere for a moment.
_SURE = 3

#: Seconds between two questions, at first and where the last answer was bad.
_PAUSE = 1.0

#: Seconds between two questions at most.
_LONGEST_PAUSE = 30.0


class ConnectionProbe:
    """Asks the broker for the topics of a consumer that has lost its connection.

    An answer is not waited for: while a broker is away it takes as long as the operation time-out,
    and messages of other topics and partitions come meanwhile.

    It is asked less and less often, for asking does harm. pulsar-client takes the brokers of a
    service URL in turn, for whatever it asks, until it has an answer. Questions that keep ending
    with the one broker that lives leave the dead one to whatever comes between them, and that was
    the reconnection, which waits twice as long each time.
    """

    def __init__(self, probe: Callable[[], Future[None]], now: Callable[[], float]) -> None:
        """Begin; *probe* asks, and gives what the broker will say."""
        self._probe = probe
        self._now = now
        self._answer: Future[None] | None = None
        self._next = 0.0
        self._pause = _PAUSE
        self._denials = 0

    def look(self) -> None:
        """Ask if it is time to, and look at what was said.

        Raises:
            pulsar.PulsarException: the broker says, and does not stop saying, that the subscription
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
            if self._denials >= _SURE:
                raise
            self._pause = _PAUSE
        except pulsar.PulsarException:
            self._denials = 0  # the broker is away: it may come back
        else:
            self._denials = 0
        self._next = self._now() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def doubt(self) -> None:
        """Let the broker say it all again before it is believed: a message has come."""
        self._denials = 0

    def end(self) -> None:
        """Forget what was said: the connection is back."""
        self._answer = None
        self._next = 0.0
        self._pause = _PAUSE
        self._denials = 0

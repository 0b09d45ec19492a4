"""The subscription without which a broker deletes dead letters."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

import attrs
import pulsar
from pulsar import Client as BareClient

from pulsar_retry.consumer.source import COME_BACK
from pulsar_retry.errors import INITIAL_SUBSCRIPTION, LetterPublishError

_log = logging.getLogger("pulsar_retry")

#: Seconds after which a letter has the subscription of its topic created again if it is gone.
_KEPT = 60.0

_NOT_KEPT = (
    "no subscription is created on %s (initial_subscription_name=None): if you have not created "
    "one, a broker with default settings deletes the topic and its dead letters after a minute"
)


class InitialSubscription:
    """Creates the subscription that keeps the letters of a dead-letter topic."""

    def __init__(self, client: pulsar.Client, name: str | None) -> None:
        """Make it.

        Args:
            client: The consumer's client. Its client of letters is used: if a topic is terminated,
                its consumers are notified, and pulsar-client then closes their connection.
            name: The name of the subscription; None: it is not created, but a warning is logged.
        """
        self._client = letter_client_of(client)
        self._name = name
        self._has_warned = False

    def create(self, topic: str) -> None:
        """Create the subscription of *topic* from its start, if there is none. Blocks.

        Raises:
            pulsar.PulsarException: it could not be created.
        """
        if self._name is None:
            if not self._has_warned:
                self._has_warned = True
                _log.warning(_NOT_KEPT, topic)
            return
        try:
            consumer = BareClient.subscribe(
                self._client,
                topic,
                self._name,
                pulsar.ConsumerType.Shared,
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=1,
            )
        except pulsar.ConsumerBusy:
            return  # another consumer is connected to it, so the subscription exists
        consumer.close()


@attrs.define(eq=False)
class Attempts:
    """Whether the last attempts have failed, and when to try again.

    Attributes:
        failures: How many attempts in succession have failed.
        error: The last error; None after a success.
        retry_at: Until then, letters fail without an attempt. So a broken topic does not cause an
            attempt for each message.
    """

    failures: int = attrs.field(default=0, init=False)
    error: Exception | None = attrs.field(default=None, init=False)
    retry_at: float = attrs.field(default=0.0, init=False)

    def failed(self, error: Exception, now: float) -> None:
        """Record that the topic does not work at present."""
        self.failures += 1
        self.error = error
        self.retry_at = now + COME_BACK.delay(self.failures)

    def worked(self) -> None:
        """Record that it works."""
        self.failures, self.error = 0, None


@attrs.define(eq=False)
class Keeper(Attempts):
    """Has what is written to one topic kept by a subscription. Thread-safe.

    If a topic is deleted, the connection of its producer creates it again, without a subscription.
    What it gets then is lost when the producer is closed.
    """

    _topic: str
    _create: Callable[[str], None]
    _clock: Callable[[], float]
    _until: float = attrs.field(default=-math.inf, init=False)
    _lock: threading.RLock = attrs.field(factory=threading.RLock, init=False)

    def is_due(self) -> bool:
        """Tell whether `ensure` must be called before the next letter."""
        return self._until <= self._clock()

    def ensure(self) -> None:
        """Create the subscription if it is gone, unless this was done a moment ago. Blocks.

        Raises:
            LetterPublishError: it could not be created, now or a moment ago.
        """
        with self._lock:
            error = None
            if self.is_due():
                error = self.error if self._clock() < self.retry_at else self._tried()
        if error is not None:
            raise LetterPublishError(self._topic, error, right=INITIAL_SUBSCRIPTION) from error

    def check(self) -> None:
        """Create the subscription if it is gone, after the last letter. Blocks; never raises.

        Further calls wait for the first one, and do nothing.
        """
        with self._lock:
            if self._until == -math.inf:
                return  # nothing was written
            error, self._until = self._tried(), -math.inf
            if error is not None:
                text = "whether what was written to %s is kept is unknown: %s"
                _log.warning(text, self._topic, error)

    def _tried(self) -> Exception | None:
        """Create the subscription; return the error, if any."""
        try:
            self._create(self._topic)
        except Exception as error:  # noqa: BLE001 - both callers tell of it
            self.failed(error, self._clock())
            return error
        self.worked()
        self._until = self._clock() + _KEPT
        return None


def letter_client_of(client: pulsar.Client) -> pulsar.Client:
    """Return the client that opens the letters' producers for *client*."""
    parts = getattr(client, "parts", None)  # pulsar-client's own clients have none
    return client if parts is None else parts.letter_client or client

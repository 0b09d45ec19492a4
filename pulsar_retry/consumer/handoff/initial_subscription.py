"""The subscription without which a broker deletes dead letters."""

from __future__ import annotations

import logging

import pulsar
from pulsar import Client as BareClient

from pulsar_retry.consumer.handoff.producers import letter_client_of

_log = logging.getLogger("pulsar_retry")

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

"""The dead-letter policy. Pure."""

from __future__ import annotations

from typing import Any

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import whole

#: The default number of retries (the same as in Java, Go and TDMQ).
DEFAULT_MAX_REDELIVER_COUNT = 16

#: The default subscription that keeps dead letters. Redrive and the console read it.
KEEPING_SUBSCRIPTION = "pulsar-retry"

#: Pub/Sub's limits for the maximum number of delivery attempts.
_PUBSUB_LEAST, _PUBSUB_MOST = 5, 100


@attrs.frozen
class DeadLetterPolicy:
    """How often a message is retried, and where its letters go.

    Attributes:
        max_redeliver_count: N, the number of retries after the first delivery. An application sees
            a message N + 1 times, then the message goes to the dead-letter topic (as in the Java
            client and TDMQ). 0: the first failure dead-letters the message.
        retry_letter_topic: The retry topic. None: its name is derived from topic and subscription.
        dead_letter_topic: The dead-letter topic. None: its name is derived in the same way.
        initial_subscription_name: The durable subscription that is created on the dead-letter topic
            before the first dead letter. Without a subscription, a broker with default settings
            deletes the topic with its letters after a minute. The subscription keeps unread
            letters, so name the one that your own consumer of the topic uses. None: no subscription
            is created, and a warning is logged.
    """

    max_redeliver_count: int = DEFAULT_MAX_REDELIVER_COUNT
    retry_letter_topic: str | None = None
    dead_letter_topic: str | None = None
    initial_subscription_name: str | None = KEEPING_SUBSCRIPTION

    def __attrs_post_init__(self) -> None:
        """Refuse an invalid count, and what is no name."""
        whole("max_redeliver_count", self.max_redeliver_count, 0)
        for name in ("retry_letter_topic", "dead_letter_topic", "initial_subscription_name"):
            value = getattr(self, name)
            is_name = isinstance(value, str) and value and value == value.strip()
            if value is not None and not is_name:
                raise ConfigError.bad(
                    name, value, "a name as str without blanks around it, or None"
                )

    @classmethod
    def pubsub(cls, max_delivery_attempts: int = _PUBSUB_LEAST) -> DeadLetterPolicy:
        """Return Pub/Sub's dead-letter policy ("Handle message failures").

        Pub/Sub counts attempts and this class counts retries, which are one less. Pub/Sub calls its
        number approximate. Here it is exact if retries use letters. `attrs.evolve` changes the rest
        of the policy.

        Args:
            max_delivery_attempts: 5 to 100, including the first delivery.

        Raises:
            ConfigError: *max_delivery_attempts* is out of range.
        """
        least, most = _PUBSUB_LEAST, _PUBSUB_MOST
        accepted = f"a whole number from {least} to {most}"
        count = whole(
            "max_delivery_attempts", max_delivery_attempts, least, most, accepted=accepted
        )
        return cls(count - 1)

    @classmethod
    def of(cls, policy: Any) -> DeadLetterPolicy:
        """Return *policy* as this class; it can be a `pulsar.ConsumerDeadLetterPolicy`.

        If a `pulsar.ConsumerDeadLetterPolicy` names no initial subscription, the default of this
        class is used: None there can mean that the user has set nothing.

        Raises:
            ConfigError: the value is neither of these.
        """
        if isinstance(policy, cls):
            return policy
        try:
            return cls(
                max_redeliver_count=policy.max_redeliver_count,
                dead_letter_topic=policy.dead_letter_topic.strip() or None,
                initial_subscription_name=policy.initial_subscription_name.strip()
                or KEEPING_SUBSCRIPTION,
            )
        except AttributeError:
            raise ConfigError.bad(
                "dead_letter_policy",
                policy,
                "a pulsar_retry.DeadLetterPolicy or a pulsar.ConsumerDeadLetterPolicy",
            ) from None

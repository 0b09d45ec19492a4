"""Reading messages in integration tests."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

import pulsar_retry as pr

SUBSCRIPTION = "billing"

#: Milliseconds to wait for a message that must come, also on a busy machine.
SOON = 90_000

#: Milliseconds to wait for a message that must not come.
NEVER = 1_000

#: Arguments of `subscribe`: Shared, from the first message on; and with retries.
FROM_START: dict[str, Any] = {
    "consumer_type": pulsar.ConsumerType.Shared,
    "initial_position": pulsar.InitialPosition.Earliest,
}
RETRYING = FROM_START | {"enable_retry": True}


def retry_topic(topic: str) -> str:
    """Return the retry topic of *topic*."""
    return f"{topic}-{SUBSCRIPTION}-RETRY"


def dead_letter_topic(topic: str) -> str:
    """Return the dead-letter topic of *topic*."""
    return f"{topic}-{SUBSCRIPTION}-DLQ"


def is_settled(admin: Any, topic: str) -> bool:
    """Return whether nothing is left; a letter is published before its original is acknowledged."""
    return all(admin.backlog(name, SUBSCRIPTION) == 0 for name in (topic, retry_topic(topic)))


def read_all(client: pr.Client, topic: str, count: int, **options: Any) -> list[pulsar.Message]:
    """Read *count* messages of *topic* from its start, and check that there are no more."""
    consumer = client.subscribe(
        topic, "inspector", initial_position=pulsar.InitialPosition.Earliest, **options
    )
    # The backoff of push waits for 25.6 s after its ninth failure.
    messages = [consumer.receive(SOON) for _ in range(count)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(NEVER)
    consumer.close()
    return messages


def receive_all(
    consumer: pr.Consumer, wait: int = NEVER, *, count: int = 0, different: int = 0
) -> list[bytes]:
    """Receive and acknowledge until nothing comes for *wait* milliseconds; return the payloads.

    That nothing comes for a moment does not mean that all is there. So this waits longer until
    *count* messages, and *different* payloads, have come.
    """
    payloads: list[bytes] = []
    while True:
        is_short = len(payloads) < count or len(set(payloads)) < different
        try:
            message = consumer.receive(SOON if is_short else wait)
        except pulsar.Timeout:
            return payloads
        consumer.acknowledge(message)
        payloads.append(message.data())

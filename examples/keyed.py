"""Key_Shared: messages keep key and ordering key through retries and into the dead-letter topic.

Two consumers share a subscription, and each key belongs to one of them. Later messages of the same
key overtake a message that is retried. Any consumer may get the retry letter, because the retry
topic has a Shared subscription: only then does the broker delay it. If order matters, use a
subscriber, as `ordered.py` does.
"""

import os
import uuid

import pulsar

import pulsar_retry as pr

URL = os.environ.get("PULSAR_SERVICE_URL", "pulsar://localhost:6650")
TOPIC = f"accounts-{uuid.uuid4().hex[:8]}"
KEYS = ["alice", "bob", "carol"]
RETRIES = 1
POLL = 100  # milliseconds


def main() -> None:
    """Send two messages for each key; the second one fails until it is a dead letter."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(URL, logger=logger) as client:
        consumers = {name: subscribe(client, name) for name in ("one", "two")}
        dead_letter_topic = pr.Naming.PULSAR.topics(TOPIC, "ledger").dead_letter
        dead_letters = client.subscribe(dead_letter_topic, "inspection")
        producer = client.create_producer(TOPIC)
        for text in (b"deposit", b"withdrawal"):
            for key in KEYS:
                producer.send(text, partition_key=key, ordering_key=f"{key}-orders")

        settled = 0
        while settled < 2 * len(KEYS):
            settled += sum(settle_next(name, consumer) for name, consumer in consumers.items())
        for _ in KEYS:
            dead = dead_letters.receive()
            keys = f"key {dead.partition_key()}, ordering key {dead.ordering_key()}"
            print(f"dead: {dead.data().decode()}, {keys}")


def subscribe(client: pr.Client, name: str) -> pr.Consumer:
    """Open one of the consumers."""
    return client.subscribe(
        TOPIC,
        "ledger",
        consumer_type=pulsar.ConsumerType.KeyShared,
        consumer_name=name,
        enable_retry=True,
        delay_levels="100ms",
        dead_letter_policy=pr.DeadLetterPolicy(max_redeliver_count=RETRIES),
    )


def settle_next(name: str, consumer: pr.Consumer) -> bool:
    """Handle one message if there is one; return whether a message is finished."""
    try:
        message = consumer.receive(timeout_millis=POLL)
    except pulsar.Timeout:
        return False
    text, key, attempt = message.data().decode(), message.partition_key(), pr.attempt_of(message)
    print(f"consumer {name}: {text}, key {key}, attempt {attempt}")
    if text == "deposit":
        consumer.acknowledge(message)
        return True
    consumer.reconsume_later(message)
    return attempt > RETRIES


if __name__ == "__main__":
    main()

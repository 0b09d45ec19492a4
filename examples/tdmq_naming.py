"""TDMQ: how its versions name retry and dead-letter topics, and a consumer that uses those names.

TDMQ clusters of different versions derive different names from topic and subscription. To share
letters with consumers that were written for such a cluster, choose the dialect of its version.
"""

import os
import uuid

import pulsar

import pulsar_retry as pr

URL = os.environ.get("PULSAR_SERVICE_URL", "pulsar://localhost:6650")
TOPIC = f"orders-{uuid.uuid4().hex[:8]}"
# TDMQ 2.7.2 and older name the topics of letters by the subscription alone. So it has to be unique
# in its namespace: otherwise two topics share their letters.
SUBSCRIPTION = f"billing-{uuid.uuid4().hex[:8]}"


def main() -> None:
    """Print the names of each dialect, then dead-letter one message under TDMQ 2.7.2."""
    for naming in pr.Naming:
        topics = naming.topics(TOPIC, SUBSCRIPTION)
        print(f"{naming.value:<12} retry        {topics.retry}")
        print(f"{'':<12} dead letters {topics.dead_letter}")

    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(URL, logger=logger) as client:
        consumer = client.subscribe(
            TOPIC,
            SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.Shared,
            enable_retry=True,
            naming=pr.Naming.TDMQ_2_7_2,
            delay_levels="100ms",
            dead_letter_policy=pr.DeadLetterPolicy(max_redeliver_count=1),
        )
        names = pr.Naming.TDMQ_2_7_2.topics(TOPIC, SUBSCRIPTION)
        dead_letters = client.subscribe(names.dead_letter, "inspection")
        client.create_producer(TOPIC).send(b"order 1")

        consumer.reconsume_later(consumer.receive())
        letter = consumer.receive()
        # The TDMQ dialects also write the property DELAY (the level), as TDMQ's clients do.
        print(f"retried through {letter.topic_name()}, DELAY={letter.properties()['DELAY']}")
        consumer.reconsume_later(letter)
        dead = dead_letters.receive()
        print(f"dead in {dead.topic_name()}, from {pr.RetryProperties.of(dead).real_topic}")


if __name__ == "__main__":
    main()

"""A typed program of a user: a consumer, a subscriber, letters and a push receiver."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta

import pulsar
from pulsar.schema import Integer, JsonSchema, Record

import pulsar_retry as pr
from pulsar_retry.replay import Cluster, Subscription, seek

URL = "pulsar://localhost:6650"


class Order(Record):
    """What the topic has."""

    number = Integer(required=True)


POLICY = pr.RetryPolicy(max_attempts=5, backoff=pr.Exponential(10, 600), jitter="full")


def handle(message: pulsar.Message) -> None:
    """Handle one message."""
    if message.redelivery_count() > 3:
        raise pr.Reject("worn out")
    text: str = message.data().decode() + message.properties().get("shop", "")
    if not text:
        raise pr.Retry(delay=30)


def consume(client: pr.Client) -> bytes:
    """Receive, and retry what fails."""
    consumer = client.subscribe(
        "orders",
        "billing",
        pulsar.ConsumerType.Shared,
        schema=JsonSchema(Order),
        enable_retry=True,
        naming="tdmq-2.9.2",
        initial_position=pulsar.InitialPosition.Earliest,
        dead_letter_policy=pr.DeadLetterPolicy(
            max_redeliver_count=3,
            retry_producer=pr.ProducerOptions(compression_type="zstd"),
            dead_letter_producer=pr.ProducerOptions(pulsar.CompressionType.LZ4),
        ),
    )
    message = consumer.receive(timeout_millis=1000)
    order: Order = message.value()
    with pr.process_span(message):
        consumer.reconsume_later(message, delay=10 + order.number)
    for each in consumer.batch_receive():
        consumer.acknowledge(each.message_id())
    return message.data()


def work(client: pr.Client) -> int:
    """Let a subscriber do the same."""
    subscriber = client.subscriber(
        "orders",
        "billing",
        handle,
        retry_policy=POLICY,
        workers="processes",
        redelivery="letters",
    )
    subscriber.start().stop(mode="drain")
    return subscriber.result().acknowledged


def letters(client: pr.Client) -> list[str | None]:
    """Read dead letters with a plain reader."""
    reader = client.create_reader("orders-billing-DLQ", pulsar.MessageId.earliest)
    found: list[str | None] = []
    while reader.has_message_available():
        found.append(pr.DeadLetter.of(reader.read_next(1000)).failure.reason)
    return found


def go_back() -> int:
    """Deliver the last two hours again."""
    cluster = Cluster(URL, admin_url="http://localhost:8080")
    return seek(Subscription(cluster, "orders", "billing"), timedelta(hours=2)).replayed


def receive_push(headers: Mapping[str, str]) -> object:
    """Verify a push request."""
    verifier = pr.push.Verifier("https://example.com/jwks", audience="us", email="push@example.com")
    return verifier.verify(headers)["email"]


async def consume_async() -> int:
    """Do it on an event loop."""
    async with pr.asyncio.Client(URL, io_threads=2) as client:
        consumer = await client.subscribe("orders", "billing", enable_retry=True)
        message = await consumer.receive()
        await consumer.negative_acknowledge(message, delay=1)
        return message.publish_timestamp()


if __name__ == "__main__":
    asyncio.run(consume_async())

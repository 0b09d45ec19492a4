"""A typed program of a user: a consumer, subscribers, letters and a push receiver."""

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, ParamSpec, TypedDict, TypeVar

import pulsar
import pydantic
from pulsar.schema import Integer, JsonSchema, Record

import pulsar_retry as pr
from pulsar_retry.replay import Cluster, Subscription, seek

URL = "pulsar://localhost:6650"
P = ParamSpec("P")
R = TypeVar("R")


class Order(Record):
    """What the topic has."""

    number = Integer(required=True)


@dataclasses.dataclass
class Payment:
    """What a payload is decoded to."""

    price: int


class Refund(TypedDict):
    """The same as a dict."""

    price: int


class Invoice(pydantic.BaseModel):
    """The same as a model."""

    price: int


POLICY = pr.RetryPolicy(max_attempts=5, backoff=pr.Exponential(10, 600), jitter="full")


def handle(message: pulsar.Message) -> None:
    """Handle one message."""
    if message.redelivery_count() > 3:
        raise pr.Reject("worn out")
    text: str = message.data().decode() + message.properties().get("shop", "")
    if not text:
        raise pr.Retry(delay=30)


def charge(payment: Payment) -> None:
    """Handle a payload."""
    assert payment.price + 1


async def charge_later(payment: Payment, message: pulsar.Message) -> None:
    """Handle a payload and its message."""
    assert message.data().startswith(b"%d" % payment.price)


def refund(refund: Refund | None, message: pulsar.Message) -> object:
    """Handle a payload that can be null."""
    return pr.Drop("null") if refund is None else message


def timed(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a handler."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    return call


@timed
def send_invoice(invoice: Invoice, retries: int = 3) -> None:
    """Handle a payload, with a setting."""
    assert invoice.price + retries


def ship(database: str, order: Order, message: pulsar.Message) -> None:
    """Handle what a schema gives, somewhere."""
    assert (database, order.number) < (message.topic_name(), 9)


def log(message: Any) -> None:
    """Handle a message."""
    assert message.data()


class Worker:
    """Has a handler, and is one."""

    def handle(self, payment: Payment) -> None:
        """Handle a payload."""

    def __call__(self, payment: Payment, message: pulsar.Message) -> None:
        """Handle a payload and its message."""


def work_with_types(client: pr.Client, others: pr.asyncio.Client) -> None:
    """Let handlers have what they ask for."""
    client.subscriber("payments", "billing", charge)
    client.subscriber("payments", "billing", charge_later)
    client.subscriber("payments", "billing", refund)
    client.subscriber("payments", "billing", send_invoice)
    client.subscriber("orders", "billing", functools.partial(ship, "db"), schema=JsonSchema(Order))
    client.subscriber("payments", "billing", Worker())
    client.subscriber("payments", "billing", Worker().handle)
    client.subscriber("payments", "billing", log)
    client.subscriber("payments", "billing", print)
    client.subscriber("payments", "billing", lambda message: message.data())
    others.subscriber("payments", "billing", charge)
    others.subscriber("payments", "billing", charge_later)
    others.subscriber("payments", "billing", functools.partial(ship, "db"))
    others.subscriber("payments", "billing", lambda message: message.data())


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
        dead_letter_policy=pr.DeadLetterPolicy(max_redeliver_count=3),
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

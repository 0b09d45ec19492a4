"""Consumers that hand messages off, record it in a ledger, and stop when every message has ended.

Each way to hand off is one function of a client, a topic and a ledger. So a test can run it in its
process, and `crashing` can run it in a process that is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pulsar

import pulsar_retry as pr
from support.faults.ledger import Ledger, number_of, patiently, payload
from support.reading import SUBSCRIPTION

EARLIEST = pulsar.InitialPosition.Earliest

#: Milliseconds for which a consumer waits before it checks whether it has to stop.
_GLANCE = 200

#: Seconds by which a broker may be early: the default of `delayedDeliveryTickTimeMillis`.
_TICK = 1.0

#: Seconds by which a letter may be published later than its delay begins.
_UNTIL_PUBLISHED = 0.5

#: Seconds until a retry: two ticks. A shorter delay would be no delay at all. Then a retried
#: message would be in flight again together with its neighbours, and a fault would hit more letters
#: than it names.
DELAY = 2.0

#: The name of consumers that have one.
NAME = "same"

#: The real wall clock, even if a test replaces it.
_wall = time.time

GoOn = Callable[[], bool]


def publish(client: Any, topic: str, ledger: Ledger, count: int, **options: Any) -> None:
    """Publish *count* messages with the next numbers; enter those that have a receipt.

    The subscription is made first, because a broker deletes a topic without one.
    """
    patiently(lambda: _keep(client, topic), pulsar.Timeout)
    options = {
        "batching_enabled": False,
        "max_pending_messages": 0,
        "send_timeout_millis": 120_000,  # what has no receipt, but is stored, would be strange
    } | options
    # pulsar-client asks one of the listed brokers, and doubles its wait after each failure. A
    # few calls to a dead broker use up any time-out. So ask again, as an application would.
    producer = patiently(lambda: client.create_producer(topic, **options), pulsar.Timeout)
    first = ledger.account().sent
    for number in range(first, first + count):

        def sent(result: Any, _message_id: Any, number: int = number) -> None:
            if result == pulsar.Result.Ok:
                ledger.enter("sent", number)

        producer.send_async(payload(number), sent)
    producer.flush()
    producer.close()


def _keep(client: Any, topic: str) -> None:
    """Make the subscription, unless a consumer is connected to it."""
    with suppress(pulsar.ConsumerBusy):
        pulsar.Client.subscribe(
            client,
            topic,
            SUBSCRIPTION,
            pulsar.ConsumerType.Shared,
            initial_position=EARLIEST,
            receiver_queue_size=1,
        ).close()


def subscribe(client: pr.Client, topic: str, **options: Any) -> pr.Consumer:
    """Subscribe with retries, Shared, from the start of the topic."""
    options = {
        "consumer_type": pulsar.ConsumerType.Shared,
        "initial_position": EARLIEST,
        "enable_retry": True,
        "dead_letter_policy": pr.DeadLetterPolicy(2, initial_subscription_name="keep"),
    } | options
    return patiently(lambda: client.subscribe(topic, SUBSCRIPTION, **options), pulsar.Timeout)


def received(consumer: pr.Consumer, ledger: Ledger, go_on: GoOn) -> Any:
    """Yield messages while *go_on* is true; enter each as delivered."""
    while go_on():
        with suppress(pulsar.Timeout):
            message = consumer.receive(_GLANCE)
            ledger.enter("delivered", message)
            yield message


def assert_was_due(ledger: Ledger, message: Any) -> None:
    """Fail if a letter came before it was due, by more than one tick of any broker.

    Its delay begins when it is asked for; a busy machine publishes it later. When another process
    has asked for it is not known here.
    """
    waited = _wall() - message.publish_timestamp() / 1000
    if (asked := ledger.asked.get(number_of(message))) is not None:
        waited = max(waited, time.monotonic() - asked)
    delay = pr.RetryProperties.of(message).delay or 0.0
    early = f"a letter with a delay of {delay} s came after {waited:.3f} s"
    assert waited >= delay - _TICK - _UNTIL_PUBLISHED, early


def process(consumer: pr.Consumer, ledger: Ledger, message: Any) -> None:
    """Process a message, then acknowledge it."""
    assert_was_due(ledger, message)
    ledger.enter("processed", message)
    consumer.acknowledge(message)


def retry(client: pr.Client, topic: str, ledger: Ledger, go_on: GoOn, **options: Any) -> None:
    """Reconsume every message once, then process it."""
    consumer = subscribe(client, topic, **options)
    for message in received(consumer, ledger, go_on):
        if pr.RetryProperties.of(message).reconsume_times:
            process(consumer, ledger, message)
            continue
        ledger.enter("retried", message)
        with suppress(pr.LetterPublishError, pr.AcknowledgeError):  # it comes again
            consumer.reconsume_later(message, delay=DELAY)
    consumer.close()


def retry_many(
    client: pr.Client,
    topic: str,
    ledger: Ledger,
    go_on: GoOn,
    *,
    delay: float = DELAY,
    **options: Any,
) -> None:
    """Do the same as `retry`, with many letters in flight."""
    consumer = subscribe(client, topic, **options)
    for message in received(consumer, ledger, go_on):
        if pr.RetryProperties.of(message).reconsume_times:
            process(consumer, ledger, message)
        else:
            ledger.enter("retried", message)
            consumer.reconsume_later_async(message, delay=delay)
    consumer.close()


def dead_letter(client: pr.Client, topic: str, ledger: Ledger, go_on: GoOn, **options: Any) -> None:
    """Send every message to the dead-letter topic."""
    consumer = subscribe(client, topic, **options)
    for message in received(consumer, ledger, go_on):
        with suppress(pr.LetterPublishError, pr.AcknowledgeError):
            consumer.dead_letter(message)
    consumer.close()


def nack(client: pr.Client, topic: str, ledger: Ledger, go_on: GoOn, **options: Any) -> None:
    """Nack every message; the policy allows no redelivery, so each becomes a dead letter."""
    options.setdefault("dead_letter_policy", pr.DeadLetterPolicy(0, initial_subscription_name="k"))
    consumer = subscribe(client, topic, enable_retry=False, **options)
    for message in received(consumer, ledger, go_on):
        consumer.negative_acknowledge(message)
    consumer.close()


def manage(client: pr.Client, topic: str, ledger: Ledger, go_on: GoOn, **options: Any) -> None:
    """Run a managed subscriber whose handler fails on the first attempt."""

    def handle(message: Any) -> None:
        ledger.enter("delivered", message)
        if not pr.RetryProperties.of(message).reconsume_times:
            ledger.enter("retried", message)
            raise ValueError("the first attempt fails")
        ledger.enter("processed", message)

    options.setdefault("concurrency", 2)
    policy = pr.RetryPolicy(max_attempts=5, backoff=pr.Fixed(DELAY))
    options["retry_policy"] = policy
    run(lambda: client.subscriber(topic, SUBSCRIPTION, handle, **managed(options)), go_on)


def managed(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a consumer as those of a subscriber or a dispatcher.

    All first attempts fail here, which would open the breaker.
    """
    of_letters = {name: options.pop(name) for name in ("letter_send_timeout",) if name in options}
    return {**options, "letters": pr.Letters(**of_letters), "breaker": None}


def run(subscriber: Callable[[], pr.Subscriber], go_on: GoOn) -> None:
    """Start a subscriber, again if the broker is too busy, and run it while *go_on* is true."""
    running = patiently(lambda: subscriber().start(), pulsar.Timeout)
    while go_on():
        with suppress(TimeoutError):
            running.result(_GLANCE / 1000)
    running.stop()


def reject(client: pr.Client, topic: str, ledger: Ledger, go_on: GoOn, **options: Any) -> None:
    """Run a managed subscriber whose handler rejects every message."""

    def handle(message: Any) -> None:
        ledger.enter("delivered", message)
        raise pr.Reject("invalid")

    run(lambda: client.subscriber(topic, SUBSCRIPTION, handle, **managed(options)), go_on)


#: The ways to hand off, by name.
WAYS: dict[str, Callable[..., None]] = {
    "reconsume_later": retry,
    "dead_letter": dead_letter,
    "nack": nack,
    "subscriber": manage,
    "same name": partial(retry, consumer_name=NAME),
}

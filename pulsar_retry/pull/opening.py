"""How the subscription is opened."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import pulsar

from pulsar_retry.consumer.client import Client
from pulsar_retry.consumer.consumer import Consumer
from pulsar_retry.errors import about
from pulsar_retry.letters.plan import topic_list
from pulsar_retry.pull.options import PROCESSES, Options
from pulsar_retry.runtime.upstream import error_of
from pulsar_retry.wire.names import TopicName

#: A function of a consumer and a message.
Listener = Callable[[Any, pulsar.Message], None]

SHARED = pulsar.ConsumerType.Shared

#: The order in which consumer types are tried if none is given.
_TYPES = (SHARED, pulsar.ConsumerType.KeyShared, pulsar.ConsumerType.Failover)


class Opened(NamedTuple):
    """A subscription that was opened.

    Attributes:
        consumer: Its consumer.
        kind: The type of the consumer.
        keeps: Whether messages in hand are kept when a connection is lost. It may not be theirs if
            there are several topics or partitions. If they were asked for again, they would come
            behind later ones of their key, so they are kept if they have an order.
    """

    consumer: Consumer
    kind: pulsar.ConsumerType
    keeps: bool


def is_ordered(consumer_type: pulsar.ConsumerType) -> bool:
    """Tell whether the messages of a subscription are to be handled in order."""
    return bool(consumer_type != SHARED)


def open_subscription(client: Client, options: Options, listener: Listener | None = None) -> Opened:
    """Subscribe; pulsar-client calls *listener* with each message, unless it is None.

    If *options* have no type, it is Shared, or else the type of the consumers that are already
    connected, because the broker refuses another type.

    Raises:
        ConfigError: worker processes cannot be started here.
        pulsar.PulsarException: the broker refused the subscription.
    """
    if options.workers == PROCESSES:
        from pulsar_retry.pull.workers.processes import check_may_start  # few need it

        check_may_start()
    with about(options.topic):
        is_several = options.consumer_type != SHARED and _is_several(client, options.topic)
    consumer, kind = _opened(client, options, listener)
    return Opened(consumer, kind, is_several and is_ordered(kind))


def _is_several(client: Client, topic: Any) -> bool:
    """Tell whether *topic* is several topics or partitions, which have connections of their own."""
    if not isinstance(topic, str):
        return True
    return client.get_topic_partitions(topic) != [str(TopicName.parse(topic))]


def _opened(
    client: Client, options: Options, listener: Listener | None
) -> tuple[Consumer, pulsar.ConsumerType]:
    if (given := options.consumer_type) is not None:
        return _subscribe(client, options, given, listener), given
    refusal: pulsar.PulsarException | None = None
    for consumer_type in _TYPES:
        try:
            return _subscribe(client, options, consumer_type, listener), consumer_type
        except pulsar.ConsumerBusy as error:
            refusal = refusal or error
    assert refusal is not None  # every type was refused
    raise refusal


def _subscribe(
    client: Client,
    options: Options,
    consumer_type: pulsar.ConsumerType,
    listener: Listener | None,
) -> Consumer:
    return client.subscribe(
        options.topic,
        options.subscription,
        consumer_type=consumer_type,
        schema=options.schema,
        message_listener=listener,
        receiver_queue_size=options.flow_control.fetched_ahead,
        consumer_name=options.consumer_name,
        initial_position=options.initial_position,
        batch_index_ack_enabled=True,
        dead_letter_policy=options.letter_topics,
        enable_retry=options.redelivery == "letters",
        naming=options.letters.naming,
        delay_levels=options.letters.delay_levels,
        letter_send_timeout=options.letters.letter_send_timeout,
        crypto_key_reader=options.crypto_key_reader,
        letter_encryption_key=options.letters.letter_encryption_key,
        plain_letters=options.letters.plain_letters,
        hooks=options.hooks,
    )


def probe(client: Client, topic: Any) -> Future[None]:
    """Ask the broker for the topics, one after the other; the future gets the first error."""
    answer: Future[None] = Future()
    topics = iter(topic_list(topic))
    raw = client._client  # the public method blocks

    def answered(result: pulsar.Result, _partitions: object = None) -> None:
        try:
            each = next(topics, None)
            if result != pulsar.Result.Ok:
                answer.set_exception(error_of(result))
            elif each is None:
                answer.set_result(None)
            else:
                raw.get_topic_partitions_async(each, answered)
        except Exception as error:  # noqa: BLE001 - on pulsar-client's thread it ends the process
            answer.set_exception(error)

    answered(pulsar.Result.Ok)
    return answer

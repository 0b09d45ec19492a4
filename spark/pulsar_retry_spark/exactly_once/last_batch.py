"""Effectively once: a fingerprint of the rows of a stream's last micro-batch, on the broker.

A micro-batch that is repeated has the same numbers. If its rows are different, for example after a
repair of the code that judges them, rows would be lost. So before the first row is sent, a
fingerprint of the rows is written to a topic that belongs to the query. A durable subscription
keeps the last message of that topic.
"""

from __future__ import annotations

import json
from typing import Any

import pulsar
from _pulsar import MessageBuilder

from pulsar_retry.errors import ConfigError
from pulsar_retry.runtime.raw import has_message
from pulsar_retry_spark.clients import CachedClient, lease
from pulsar_retry_spark.exactly_once.manifest import KEEPER, TIMEOUT_MS, same_rows, sibling_topic
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.receipts import refused


def check_rows(options: SinkOptions, query: str, batch: int, rows: str) -> None:
    """Check that a micro-batch that was sent before has the same rows as before.

    Args:
        options: The options that `manifest.claimed` returns.
        query: The id of the streaming query.
        batch: The number of the micro-batch.
        rows: The fingerprint of its rows.

    Raises:
        ConfigError: it has different rows. Nothing was sent.
        PulsarFailuresError: the broker can't be asked.
    """
    topic = sibling_topic(options, f"{query}-pulsar-failures-batch")
    try:
        with lease(options.connection) as client:
            topic = client.partitions(topic)[0]  # where the cluster makes new topics partitioned
            last = _last(client, topic)
            if last is None or last["batch"] < batch:
                _replace(client, topic, last, {"batch": batch, "rows": rows})
            elif last["batch"] != batch or not same_rows(rows, last["rows"]):
                raise ConfigError(
                    f"micro-batch {batch} has {rows}, but micro-batch {last['batch']} was already "
                    f"sent with {last['rows']}: expected the same rows, or another sink.id, which "
                    "writes rows that were already written a second time"
                )
    except pulsar.PulsarException as error:
        raise refused(
            type(error).__name__, f"the fingerprint of micro-batch {batch} for {topic}"
        ) from None


def _last(client: CachedClient, topic: str) -> dict[str, Any] | None:
    """Return the content of the last message, with its id; None if there is no message."""
    reader = client.client.create_reader(
        topic, pulsar.MessageId.latest, start_message_id_inclusive=True
    )
    try:
        if not has_message(reader):
            return None
        message = reader.read_next(TIMEOUT_MS)
        return {"id": message.message_id(), **json.loads(message.data())}
    finally:
        reader.close()


def _replace(
    client: CachedClient, topic: str, last: dict[str, Any] | None, content: dict[str, Any]
) -> None:
    """Write *content*, and acknowledge the *last* message, so that the broker may delete it."""
    keeper = client.client.subscribe(
        topic,
        KEEPER,
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=1,
    )
    try:
        message = MessageBuilder().content(json.dumps(content).encode()).build()
        client.producer(topic, send_timeout_millis=TIMEOUT_MS).send(message)
        if last is not None:
            keeper.acknowledge(last["id"])
    finally:
        keeper.close()

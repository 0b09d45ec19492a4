"""A letter is the message: payload, keys, time, null, schema, size; and neighbours in a batch."""

from __future__ import annotations

import asyncio
import os
from http import HTTPMethod

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String, StringSchema

import pulsar_retry as pr
from support.consumer.filling import send_batch
from support.reading import FROM_START, SOON, read_all, receive_all
from support.waiting import eventually

EARLIEST = pulsar.InitialPosition.Earliest


class Order(Record):
    """An order, as first published."""

    item = String()
    amount = Integer()


def _avro_order(first_fields):
    """Return the Avro definition of an order with more fields in front."""
    fields = [{"name": "item", "type": "string"}, {"name": "amount", "type": "int"}]
    return {"type": "record", "name": "Order", "fields": [*first_fields, *fields]}


#: The schema of an order without its note.
SHORT = AvroSchema(None, schema_definition=_avro_order([]))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (StringSchema(), "grüße"),
        (JsonSchema(Order), Order(item="tea", amount=3)),
        (AvroSchema(Order), Order(item="tea", amount=3)),
    ],
    ids=["string", "json", "avro"],
)
def test_a_schema_decodes_letters_and_dead_letters(subscribe, client, topic, schema, value):
    """What was published comes back equal through the retry topic and from the DLQ."""
    consumer = subscribe(schema=schema, dead_letter_policy=pr.DeadLetterPolicy(1))
    client.create_producer(topic, schema=schema).send(value)

    consumer.reconsume_later(consumer.receive(SOON), delay=0)
    letter = consumer.receive(SOON)
    assert str(value) == str(letter.value())
    consumer.reconsume_later(letter, delay=0)

    (dead,) = read_all(client, f"{topic}-billing-DLQ", 1, schema=schema)
    assert str(value) == str(dead.value())


def test_a_schema_that_comes_later(subscribe, publish, topic, admin):
    """A topic that began without a schema refuses it; the error names it, and says what helps."""
    schema = JsonSchema(Order)
    consumer = subscribe()
    publish(b'{"amount": 1}')
    consumer.reconsume_later(consumer.receive(SOON), delay=0)
    consumer.acknowledge(consumer.receive(SOON))
    consumer.close()

    uploaded = {"type": "JSON", "schema": schema.schema_info().schema(), "properties": {}}
    for each in (f"{topic}-billing-RETRY", topic):
        with pytest.raises(pulsar.IncompatibleSchema) as refused:
            subscribe(schema=schema)
        assert f"The topic is {each}" in refused.value.__notes__
        assert any("schemas upload" in note for note in refused.value.__notes__)
        admin.call(HTTPMethod.POST, f"schemas/{each.replace('persistent://', '')}/schema", uploaded)
    subscribe(schema=schema)


def test_avro_letters_keep_the_schema_they_were_written_with(subscribe, client, topic):
    """A consumer with a newer schema decodes letters of older messages correctly."""
    old = AvroSchema(None, schema_definition=_avro_order([]))
    new = AvroSchema(
        None, schema_definition=_avro_order([{"name": "a_note", "type": "string", "default": "-"}])
    )
    client.create_producer(topic, schema=old).send({"item": "tea", "amount": 3})
    consumer = subscribe(schema=new, initial_position=pulsar.InitialPosition.Earliest)
    original = consumer.receive(SOON)
    assert {"a_note": "-", "item": "tea", "amount": 3} == original.value()

    consumer.reconsume_later(original, delay=0)

    assert {"a_note": "-", "item": "tea", "amount": 3} == consumer.receive(SOON).value()


def retried_by_receive(_url, subscribe, handled):
    """Retry a message twice in a loop."""
    consumer = subscribe(schema=SHORT, initial_position=EARLIEST, delay_levels="1s")
    while len(handled) < 3:
        message = consumer.receive(SOON)
        handled.append(message.value())
        consumer.reconsume_later(message)
    consumer.close()


def retried_by_a_listener(_url, subscribe, handled):
    """The same in a listener."""

    def listen(consumer, message):
        handled.append(message.value())
        consumer.reconsume_later_async(message)

    with subscribe(
        schema=SHORT, initial_position=EARLIEST, delay_levels="1s", message_listener=listen
    ):
        eventually(lambda: len(handled) == 3)


def retried_by_asyncio(url, subscribe, handled):
    """The same on an event loop."""

    async def work():
        async with pr.asyncio.Client(url, operation_timeout_seconds=90) as client:
            consumer = await client.subscribe(
                subscribe.topic, "billing", **FROM_START, schema=SHORT, enable_retry=True,
                dead_letter_policy=pr.DeadLetterPolicy(2), delay_levels="1s",
            )  # fmt: skip
            while len(handled) < 3:
                message = await consumer.receive(SOON)
                handled.append(message.value())
                await consumer.reconsume_later(message)

    asyncio.run(work())


def retried_by_a_subscriber(url, subscribe, handled):
    """The same by the policy of a subscriber."""

    def handle(message):
        handled.append(message.value())
        raise ValueError("no")

    policy = pr.RetryPolicy(max_attempts=3, backoff=pr.Fixed(1))
    with pr.Client(url, operation_timeout_seconds=90) as client:
        options = {"retry_policy": policy, "schema": SHORT}
        with client.subscriber(subscribe.topic, "billing", handle, **options):
            eventually(lambda: len(handled) == 3)


@pytest.mark.parametrize(
    "shell",
    [retried_by_receive, retried_by_a_listener, retried_by_asyncio, retried_by_a_subscriber],
)
def test_an_older_schema_that_the_retry_topic_refuses(
    shell, broker, client, subscribe, topic, namespace, admin
):
    """Its letters name it instead, and are decoded with it, also after a redrive."""
    admin.call(HTTPMethod.PUT, f"namespaces/{namespace}/schemaCompatibilityStrategy", "BACKWARD")
    long = AvroSchema(None, schema_definition=_avro_order([{"name": "note", "type": "string"}]))
    client.create_producer(topic, schema=long).send({"note": "n", "item": "tea", "amount": 3})
    handled = []

    def subscribed(**options):
        return subscribe(dead_letter_policy=pr.DeadLetterPolicy(2), **options)

    subscribed.topic = topic
    shell(broker.service_url, subscribed, handled)

    assert [{"item": "tea", "amount": 3}] * 3 == handled
    (dead,) = read_all(client, f"{topic}-billing-DLQ", 1)
    assert f"persistent://{namespace}/" in dead.properties()["WRITER_SCHEMA"]
    redriven = pr.replay.Redrive(
        f"{topic}-billing-DLQ",
        cluster=pr.replay.Cluster(broker.service_url, admin_url=broker.admin_url),
    )
    assert 1 == redriven.run().redriven
    again = subscribe(schema=SHORT)
    assert {"item": "tea", "amount": 3} == again.receive(SOON).value()


def test_partitions_share_the_producer_of_avro_letters(subscribe, client, topic, admin):
    """Each had one of its own, with a thread, though all messages have one schema."""
    admin.create_partitioned_topic(topic, 4)
    schema = AvroSchema(None, schema_definition=_avro_order([]))
    for number in range(4):
        partition = f"{topic}-partition-{number}"
        client.create_producer(partition, schema=schema).send({"item": "tea", "amount": number})
    consumer = subscribe(schema=schema, initial_position=pulsar.InitialPosition.Earliest)
    for message in [consumer.receive(SOON) for _ in range(4)]:
        consumer.reconsume_later(message, delay=0)
    assert {0, 1, 2, 3} == {consumer.receive(SOON).value()["amount"] for _ in range(4)}

    assert 1 == len(admin.stats(f"{topic}-billing-RETRY")["publishers"])


def test_a_large_message_is_chunked_through_retry_and_dlq(subscribe, client, topic):
    """12 MiB, more than the broker takes in one piece, arrives byte for byte."""
    payload = os.urandom(12 << 20)
    # Its chunks are one letter: more could not be in flight.
    consumer = subscribe(dead_letter_policy=pr.DeadLetterPolicy(1), max_pending_letters=1)
    client.create_producer(topic, chunking_enabled=True).send(payload)

    consumer.reconsume_later(consumer.receive(SOON), delay=0)
    letter = consumer.receive(SOON)
    assert payload == letter.data()
    consumer.reconsume_later(letter, delay=0)

    (dead,) = read_all(client, f"{topic}-billing-DLQ", 1)
    assert payload == dead.data()


@pytest.mark.parametrize("index_ack", [True, False])
def test_neighbours_in_a_batch_are_left_alone(subscribe, client, admin, topic, index_ack):
    """One of ten is reconsumed, nine are acknowledged: the batch is done, one letter is out."""
    consumer = subscribe(batch_index_ack_enabled=index_ack)
    send_batch(client, topic, 10)

    messages = [consumer.receive(SOON) for _ in range(10)]
    for number, message in enumerate(messages):
        if number == 4:
            consumer.reconsume_later(message, delay=0.5)
        else:
            consumer.acknowledge(message)

    eventually(lambda: admin.backlog(topic, "billing") == 0)
    assert [b"4"] == receive_all(consumer, count=1)

"""Rows with the schema of their topic: as consumers read them, redriven, and as text for Spark."""

from __future__ import annotations

import json

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String
from pyspark.sql import functions as F

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark import (
    PulsarFailuresError,
    PulsarSourceError,
    failures,
    read_failures,
    topic_schema,
    write_failures,
)
from support.reading import SOON, SUBSCRIPTION

BY_TOPIC = {"value.schema": "topic"}


class Order(Record):
    """An order."""

    id = Integer(required=True)
    item = String()


@pytest.fixture(params=[AvroSchema, JsonSchema], ids=["Avro", "JSON"])
def schema(request, client, topic):
    """Give the topic a schema."""
    schema = request.param(Order)
    client.subscribe(topic, "keeper", schema=schema).close()  # the schema ends with the topic
    return schema


def encoded(spark, schema, **more):
    """Return rows whose payloads are encoded already."""
    payloads = [schema.encode(Order(id=number, item=None)) for number in (1, 2)]
    rows = spark.createDataFrame([(each,) for each in payloads], "payload binary")
    return failures(rows, payload="payload", reason=F.lit("bad"), **more)


def read(client, topic, schema, count):
    """Return messages of *topic* as a consumer with a record class has them."""
    consumer = client.subscribe(
        topic, "reader", schema=schema, initial_position=pulsar.InitialPosition.Earliest
    )
    return [consumer.receive(SOON) for _ in range(count)]


def check(messages):
    """Check that both orders are there, with the schema."""
    assert [1, 2] == sorted(each.value().id for each in messages)
    assert {0} == {each._message.int_schema_version() for each in messages}


@pytest.mark.parametrize("action", ["retry", "dead_letter"])
def test_a_consumer_with_the_record_reads_the_rows(spark, letters, client, schema, action):
    """From the retry topic, alone because of the delay, and from the dead-letter topic."""
    delay = F.lit(100) if action == "retry" else None
    rows = encoded(spark, schema, action=action, delay_ms=delay)
    report = write_failures(rows, letters.options | BY_TOPIC)
    assert {action: 2} == report.by_action
    check(read(client, letters.retry if action == "retry" else letters.dead, schema, 2))


def test_without_the_schema_a_topic_is_closed_to_such_consumers(spark, letters, client, schema):
    """So this is what the option is for; with it, they may come afterwards."""
    write_failures(encoded(spark, schema, action="dead_letter"), letters.options)
    with pytest.raises(pulsar.IncompatibleSchema):
        read(client, letters.dead, schema, 0)
    write_failures(encoded(spark, schema, action="dead_letter"), letters.options | BY_TOPIC)
    read(client, letters.dead, schema, 0)


def test_spark_s_own_writer_has_the_schema_too(spark, letters, client, schema):
    """By the name of the format."""
    pytest.importorskip("pyspark.sql.datasource")
    from pulsar_retry_spark import register

    register(spark)
    writer = encoded(spark, schema, action="dead_letter").write.format("pulsar-failures")
    writer.options(**letters.options, **BY_TOPIC).mode("append").save()
    check(read(client, letters.dead, schema, 2))


@pytest.mark.parametrize("schema", [JsonSchema], indirect=True, ids=["JSON"])
def test_rows_as_json_are_payloads_of_a_json_topic(spark, letters, client, schema):
    """It is what `failures` makes by default."""
    rows = spark.sql("SELECT 1 AS id, 'tea' AS item UNION ALL SELECT 2, NULL")
    rows = failures(rows, reason=F.lit("bad"), action="dead_letter")
    write_failures(rows, letters.options | BY_TOPIC)
    check(read(client, letters.dead, schema, 2))


@pytest.mark.parametrize("schema", [AvroSchema], indirect=True, ids=["Avro"])
@pytest.mark.usefixtures("schema")
def test_json_is_no_payload_of_an_avro_topic(spark, letters, admin, namespace):
    """No consumer could read it, so not even the topic is created."""
    rows = failures(spark.sql("SELECT 1 AS id"), reason=F.lit("bad"))
    with pytest.raises(ConfigError, match="'payload' is string: expected binary that is Avro"):
        write_failures(rows, letters.options | BY_TOPIC)
    assert not {letters.retry, letters.dead} & set(admin.topics(namespace))


def test_a_topic_without_a_schema_is_named(spark, letters):
    """Its rows are bytes, without a version; and a struct is no payload."""
    with pytest.raises(ConfigError, match=f"a topic with a schema: {letters.topic} has none"):
        write_failures(encoded(spark, AvroSchema(Order)), letters.options | BY_TOPIC)
    letters.send(b"x")
    (row,) = read_failures(spark, letters.options).collect()
    assert row.schema_version is None
    struct = spark.sql("SELECT struct(1 AS id) AS payload")
    with pytest.raises(ConfigError, match=r"'payload' is struct<.*: expected binary or string"):
        write_failures(struct, letters.options)


# --- Two versions --------------------------------------------------------------------------------


def definition(*more):
    """Return an order's definition, with more fields before the first ones."""
    fields = [{"name": "item", "type": "string"}, {"name": "amount", "type": "int"}]
    return {"type": "record", "name": "Order", "fields": [*more, *fields]}


OLD = definition()
NEW = definition({"name": "note", "type": ["null", "string"], "default": None})


def avro(fields):
    """Return a schema; pulsar-client changes what it is given."""
    return AvroSchema(None, schema_definition=json.loads(json.dumps(fields)))


@pytest.fixture
def consumer(client, topic):
    """Give a consumer that reads with the new schema, from the beginning."""
    client.subscribe(topic, "keeper").close()
    client.create_producer(topic, schema=avro(OLD)).send({"item": "tea", "amount": 1})
    client.create_producer(topic, schema=avro(NEW)).send({"item": "jam", "amount": 2, "note": "n"})
    return client.subscribe(
        topic,
        SUBSCRIPTION,
        schema=avro(NEW),
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        enable_retry=True,
    )


@pytest.fixture
def dead(consumer):
    """Dead-letter both orders, the newer first: return their payloads by item."""
    messages = [consumer.receive(SOON) for _ in range(2)]
    for message in reversed(messages):
        consumer.dead_letter(message, reason="bad")
    return {message.value()["item"]: message.data() for message in messages}


def names(text):
    """Return the fields of a definition."""
    return [each["name"] for each in json.loads(text)["fields"]]


def test_what_was_read_goes_back_as_it_was(spark, letters, client, consumer, dead):
    """The original bytes, each with the version that it was written with."""
    rows = read_failures(spark, letters.options)
    assert {"retry": 2} == write_failures(rows, letters.options, action="retry").by_action

    found = [consumer.receive(SOON) for _ in range(2)]
    assert dead == {message.value()["item"]: message.data() for message in found}
    definitions = {}
    for message in found:
        info = client._client.get_schema_info(
            message.topic_name(), message._message.int_schema_version()
        )
        definitions[message.value()["item"]] = names(info.schema())
    assert [2, 3] == [len(definitions[item]) for item in ("tea", "jam")]


def test_the_text_of_each_version(spark, letters, dead):
    """The latest by default; the versions of rows are those of the topic that has them."""
    assert ["note", "item", "amount"] == names(topic_schema(letters.options, letters.topic))
    assert ["item", "amount"] == names(topic_schema(letters.options, letters.topic, version=0))
    fields = {
        bytes(row.payload): names(
            topic_schema(letters.options, row.topic, version=row.schema_version)
        )
        for row in read_failures(spark, letters.options).collect()
    }
    assert {dead["tea"]: 2, dead["jam"]: 3} == {each: len(of) for each, of in fields.items()}


@pytest.mark.usefixtures("dead")
def test_a_text_that_cannot_be_had(letters):
    """The error says which, or that the broker is away."""
    with pytest.raises(ConfigError, match="expected a topic with version 9 of its schema"):
        topic_schema(letters.options, letters.topic, version=9)
    with pytest.raises(ConfigError, match="topic='other': expected a topic with a schema"):
        topic_schema(letters.options, "other")
    away = letters.options | {"service.url": "pulsar://127.0.0.1:1"}
    with pytest.raises(PulsarSourceError, match="CONNECT_ERROR"):
        topic_schema(away, letters.topic)


def test_a_schema_that_is_no_text(spark, letters, admin):
    """As that of a Java producer's KeyValue: its rows go back without it, or an error says so."""
    field = {"name": "x" * 200, "type": "int"}
    record = {"type": "record", "name": "R", "fields": [field]}
    letters.send(b"a")
    path = f"schemas/{letters.dead.removeprefix('persistent://')}/schema"
    parts = {f"{each}.schema.type": "AVRO" for each in ("key", "value")}
    definition = json.dumps({"key": record, "value": record})
    admin.call("POST", path, {"type": "KEY_VALUE", "schema": definition, "properties": parts})

    rows = read_failures(spark, letters.options)
    by_java = rows.withColumn("schema_version", F.lit(0).cast("bigint"))
    with pytest.raises(PulsarFailuresError, match=r"NO_SCHEMA\].* leave the column schema_version"):
        write_failures(by_java, letters.options, action="retry")
    write_failures(rows.drop("schema_version"), letters.options, action="retry")
    with pytest.raises(ConfigError, match="a topic whose schema is one text: not KEY_VALUE"):
        topic_schema(letters.options, letters.dead)

"""Rows with the schema of their topic, as consumers with record classes read them."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pulsar
import pytest
from pulsar.schema import Array, AvroSchema, Double, Integer, JsonSchema, Map, Record, String
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark import PulsarFailuresError, failures, write_failures
from support.reading import SOON


class Line(Record):
    """A line of an order."""

    sku = String()
    count = Integer()


class Order(Record):
    """An order."""

    id = Integer(required=True)
    item = String()
    amount = Double()
    tags = Map(String())
    lines = Array(Line())


#: Each has a struct of some columns, and nulls.
ROWS = """SELECT 1 AS id, 'tea' AS item, 1.5D AS amount, map('a', 'b') AS tags,
    array(named_struct('sku', 's', 'count', 2)) AS lines
    UNION ALL SELECT 2, NULL, NULL, NULL, NULL"""

BY_TOPIC = {"value.schema": "topic"}


@pytest.fixture(params=[AvroSchema, JsonSchema], ids=["Avro", "JSON"])
def schema(request, client, topic):
    """Give the topic a schema."""
    schema = request.param(Order)
    client.subscribe(topic, "keeper", schema=schema).close()  # the schema ends with the topic
    return schema


def failed(spark, rows=ROWS, **more):
    """Return rows to write."""
    return failures(spark.sql(rows), reason="bad", payload_as="struct", **more)


def read(client, topic, schema, count):
    """Return messages of *topic* as a consumer with a record class has them."""
    consumer = client.subscribe(
        topic, "reader", schema=schema, initial_position=pulsar.InitialPosition.Earliest
    )
    return [consumer.receive(SOON) for _ in range(count)]


def check(messages):
    """Check that both orders are there, with every column."""
    first, second = sorted((each.value() for each in messages), key=lambda each: each.id)
    line = first.lines[0]
    line = line if isinstance(line, dict) else line.__dict__
    assert (1, "tea", 1.5, {"a": "b"}) == (first.id, first.item, first.amount, first.tags)
    assert ("s", 2) == (line["sku"], line["count"])
    assert (2, None, None) == (second.id, second.item, second.amount)
    assert {0} == {each._message.int_schema_version() for each in messages}


@pytest.mark.parametrize("action", ["retry", "dead_letter"])
def test_a_consumer_with_the_record_reads_the_rows(spark, letters, client, schema, action):
    """From the retry topic, alone because of the delay, and from the dead-letter topic."""
    rows = failed(spark, action=action, delay_ms=F.lit(100) if action == "retry" else None)
    report = write_failures(rows, letters.options | BY_TOPIC)
    assert {action: 2} == report.by_action
    check(read(client, letters.retry if action == "retry" else letters.dead, schema, 2))


@pytest.mark.usefixtures("schema")
def test_without_the_schema_a_topic_is_closed_to_such_consumers(spark, letters, client, schema):
    """So this is what the option is for; with it, they may come afterwards."""
    rows = failures(spark.sql(ROWS), reason="bad", action="dead_letter")
    write_failures(rows, letters.options)
    with pytest.raises(pulsar.IncompatibleSchema):
        read(client, letters.dead, schema, 0)
    write_failures(failed(spark, action="dead_letter"), letters.options | BY_TOPIC)
    read(client, letters.dead, schema, 0)


def test_spark_s_own_writer_encodes_too(spark, letters, client, schema):
    """By the name of the format."""
    pytest.importorskip("pyspark.sql.datasource")
    from pulsar_retry_spark import register  # noqa: PLC0415 - Spark 3.5 has no data sources

    register(spark)
    writer = failed(spark, action="dead_letter").write.format("pulsar-failures")
    writer.options(**letters.options, **BY_TOPIC).mode("append").save()
    check(read(client, letters.dead, schema, 2))


def test_bytes_that_are_encoded_go_out_as_they_are(spark, letters, client, schema):
    """With the schema; so do texts, if the topic has JSON."""
    payload = schema.encode(Order(id=7, item="x"))
    rows = spark.createDataFrame([(payload, "dead_letter")], "payload binary, action string")
    write_failures(rows, letters.options | BY_TOPIC)
    (message,) = read(client, letters.dead, schema, 1)
    assert (payload, 7, 0) == (
        message.data(),
        message.value().id,
        message._message.int_schema_version(),
    )


LOGICAL = {
    "type": "record",
    "name": "Moment",
    "fields": [
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "fine", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "price",
            "type": [
                "null",
                {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            ],
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "shop", "type": "string", "default": "main"},
    ],
}

MOMENT = """SELECT date'2024-02-29' AS day, timestamp'2024-01-01 00:00:00.123Z' AS at,
    timestamp'2024-01-01 00:00:00.123456Z' AS fine, 12.5BD AS price, '{kind}' AS kind"""


@pytest.fixture
def moments(client, topic):
    """Give the topic a schema of logical types."""
    schema = AvroSchema(None, schema_definition=json.loads(json.dumps(LOGICAL)))
    client.subscribe(topic, "keeper", schema=schema).close()
    return schema


def test_logical_types_arrive(spark, letters, client, moments):
    """And a column that is not there has the default of the schema."""
    rows = failed(spark, MOMENT.format(kind="B"), action="dead_letter")
    write_failures(rows, letters.options | BY_TOPIC)
    (message,) = read(client, letters.dead, moments, 1)
    assert {
        "day": dt.date(2024, 2, 29),
        "at": dt.datetime(2024, 1, 1, 0, 0, 0, 123_000, dt.UTC),
        "fine": dt.datetime(2024, 1, 1, 0, 0, 0, 123_456, dt.UTC),
        "price": Decimal("12.50"),
        "kind": "B",
        "shop": "main",
    } == message.value()


@pytest.mark.usefixtures("moments")
def test_a_row_that_does_not_fit_fails_the_job(spark, letters):
    """Only its value shows it; the error names the column and shows no value."""
    rows = failed(spark, MOMENT.format(kind="SECRET"), action="dead_letter")
    with pytest.raises(PulsarFailuresError, match=r"payload\.kind is none of A, B") as raised:
        write_failures(rows, letters.options | BY_TOPIC)
    assert "BAD_ROW" == raised.value.slug
    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize("schema", [AvroSchema], indirect=True, ids=["Avro"])
@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ("SELECT 'x' AS id", "column 'payload.id' is string: expected tinyint or smallint or int"),
        ("SELECT 1 AS id, 2 AS itm", "did you mean payload.item?"),
        ("SELECT 'a' AS item", "no column 'payload.id': the topic's schema needs it"),
    ],
)
@pytest.mark.usefixtures("schema")
def test_columns_that_do_not_fit_fail_before_anything_is_sent(
    spark, letters, admin, namespace, rows, text
):
    """On the driver: not even the topic is created."""
    with pytest.raises(ConfigError) as raised:
        write_failures(failed(spark, rows), letters.options | BY_TOPIC)
    assert text in str(raised.value)
    assert not {letters.retry, letters.dead} & set(admin.topics(namespace))


@pytest.mark.parametrize("schema", [AvroSchema], indirect=True, ids=["Avro"])
@pytest.mark.usefixtures("schema")
def test_json_is_no_payload_of_an_avro_topic(spark, letters):
    """It is what `failures` makes by default, and no consumer could read it."""
    rows = failures(spark.sql(ROWS), reason="bad")
    with pytest.raises(ConfigError, match="payload_as='struct'"):
        write_failures(rows, letters.options | BY_TOPIC)


def test_a_topic_without_a_schema_is_named(spark, letters):
    """And a struct needs the option."""
    with pytest.raises(ConfigError, match=f"a topic with a schema: {letters.topic} has none"):
        write_failures(failed(spark), letters.options | BY_TOPIC)
    with pytest.raises(ConfigError, match=r"'payload' is struct<.*: expected binary or string"):
        write_failures(failed(spark), letters.options)

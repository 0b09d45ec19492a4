"""Letters as typed columns, whatever version of the schema each was written with, and back."""

from __future__ import annotations

import json

import _pulsar
import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String, StringSchema
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark import PulsarSourceError, read_failures, write_failures
from pulsar_retry_spark.schemas.registry import TopicSchema
from support.reading import SOON, SUBSCRIPTION

DECODE = {"value.decode": "true"}


def definition(*more):
    """Return an order's definition, with more fields before the first ones."""
    fields = [{"name": "item", "type": "string"}, {"name": "amount", "type": "int"}]
    return {"type": "record", "name": "Order", "fields": [*more, *fields]}


OLD = definition()
NEW = definition(
    {"name": "note", "type": ["null", "string"], "default": None},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
)


def avro(fields):
    """Return a schema; pulsar-client changes what it is given."""
    return AvroSchema(None, schema_definition=json.loads(json.dumps(fields)))


@pytest.fixture
def consumer(client, topic):
    """Give a consumer that reads with the new schema, from the beginning."""
    client.subscribe(topic, "keeper").close()
    client.create_producer(topic, schema=avro(OLD)).send({"item": "tea", "amount": 1})
    new = client.create_producer(topic, schema=avro(NEW))
    new.send({"item": "jam", "amount": 2, "note": "n", "at": 1_700_000_000_123})
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


def check_values(rows):
    """Check that both versions are typed columns of the newest version."""
    typed = rows.select(
        "value.item", "value.amount", "value.note", F.unix_millis("value.at"), "value_error"
    )
    assert [("jam", 2, "n", 1_700_000_000_123, None), ("tea", 1, None, 0, None)] == sorted(
        map(tuple, typed.collect())
    )
    value = rows.schema["value"].dataType.simpleString()
    assert "struct<note:string,at:timestamp,item:string,amount:int>" == value


@pytest.mark.usefixtures("dead")
def test_two_versions_are_read_as_the_latest(spark, letters):
    """By the helper, which also Spark 3.5 has."""
    rows = read_failures(spark, letters.options | DECODE)
    check_values(rows)
    assert {0, 1} == {row.schema_version for row in rows.collect()}


@pytest.mark.usefixtures("dead")
def test_the_format_decodes_too(spark, letters):
    """In a batch; the columns may also be chosen."""
    pytest.importorskip("pyspark.sql.datasource")
    from support.spark.sourcing import frame  # noqa: PLC0415 - Spark 3.5 has no data sources

    check_values(frame(spark, letters.options | DECODE))
    chosen = spark.read.format("pulsar-failures").options(**letters.options, **DECODE)
    chosen = chosen.schema(
        "value struct<note:string,at:timestamp,item:string,amount:int>, value_error string"
    )
    check_values(chosen.load())


@pytest.mark.usefixtures("dead")
def test_a_stream_decodes_too(spark, letters, tmp_path):
    """Also what comes later."""
    pytest.importorskip("pyspark.sql.datasource")
    from pulsar_retry_spark import register  # noqa: PLC0415 - as above

    register(spark)
    rows = spark.readStream.format("pulsar-failures").options(**letters.options, **DECODE).load()
    out, place = str(tmp_path / "rows"), str(tmp_path / "checkpoint")
    written = rows.select("value", "value_error").writeStream.format("parquet")
    written.option("checkpointLocation", place).trigger(availableNow=True).start(
        out
    ).awaitTermination()
    check_values(spark.read.parquet(out))


@pytest.mark.parametrize("options", [DECODE, {}], ids=["decoded", "as bytes"])
def test_what_was_read_goes_back_as_it_was(spark, letters, client, consumer, dead, options):
    """The original bytes, each with the version that it was written with."""
    rows = read_failures(spark, letters.options | options)
    assert {"retry": 2} == write_failures(rows, letters.options, action="retry").by_action

    found = [consumer.receive(SOON) for _ in range(2)]
    assert dead == {message.value()["item"]: message.data() for message in found}
    definitions = {}
    for message in found:
        info = client._client.get_schema_info(
            message.topic_name(), message._message.int_schema_version()
        )
        definitions[message.value()["item"]] = json.loads(info.schema())
    assert [2, 4] == [len(definitions[item]["fields"]) for item in ("tea", "jam")]


def test_what_was_mended_is_encoded_anew(spark, letters, consumer, dead):
    """A struct in the place of the bytes has the latest version; it is not in the old bytes."""
    rows = read_failures(spark, letters.options | DECODE).where("value.item = 'tea'")
    mended = rows.withColumn("payload", F.col("value").withField("amount", F.lit(7)))
    write_failures(mended, {**letters.options, "value.schema": "topic"}, action="retry")

    message = consumer.receive(SOON)
    assert ("tea", 7) == (message.value()["item"], message.value()["amount"])
    assert dead["tea"] != message.data()


def test_undecodable_bytes_are_rows_with_an_error(spark, letters, client, dead):
    """With their payloads; `failfast` fails the query, and shows nothing of them."""
    schema = TopicSchema("AVRO", json.dumps(NEW)).info
    wire = pulsar.schema.BytesSchema()
    wire._schema_info = schema
    producer = client.create_producer(letters.dead, schema=wire)
    producer.send(b"secret")
    letters.send(b"plain")

    rows = read_failures(spark, letters.options | DECODE).collect()

    errors = {bytes(row.payload): row.value_error for row in rows if row.value is None}
    assert {b"secret", b"plain"} == set(errors)
    assert "the message was written without a schema" == errors[b"plain"]
    assert errors[b"secret"]
    assert set(dead) == {row.value.item for row in rows if row.value is not None}
    with pytest.raises(Exception, match="PULSAR_SOURCE_UNDECODABLE") as raised:
        read_failures(spark, {**letters.options, **DECODE, "mode": "FAILFAST"}).collect()
    assert "secret" not in str(raised.value)


class Item(Record):
    """An item, as a class."""

    name = String()
    count = Integer()


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (JsonSchema(Item), Item(name="tea", count=3), ("tea", 3)),
        (AvroSchema(Item), Item(name="tea", count=None), ("tea", None)),
        (StringSchema(), "tea", "tea"),
    ],
    ids=["JSON", "Avro", "string"],
)
def test_letters_of_other_clients_are_decoded(spark, letters, client, schema, value, expected):
    """Where only the dead-letter topic has a schema."""
    producer = client.create_producer(letters.dead, schema=schema)  # it keeps the topic
    producer.send(value)
    (row,) = read_failures(spark, letters.options | DECODE).collect()
    found = row.value if isinstance(row.value, str) else (row.value["name"], row.value["count"])
    assert expected == found
    producer.close()


def test_a_topic_without_a_schema_says_so(spark, letters):
    """Its rows are bytes, without a version."""
    letters.send(b"x")
    with pytest.raises(ConfigError, match="expected a topic with a schema, but none of"):
        read_failures(spark, letters.options | DECODE)
    (row,) = read_failures(spark, letters.options).collect()
    assert row.schema_version is None
    assert "value" not in row


def test_a_broker_that_is_not_there_is_no_topic_without_a_schema(spark, letters):
    """The error is that of every query."""
    away = letters.options | DECODE | {"service.url": "pulsar://127.0.0.1:1"}
    with pytest.raises(PulsarSourceError, match="CONNECT_ERROR"):
        read_failures(spark, away)


def test_the_kinds_of_schemas_are_pulsar_s():
    """A new pulsar-client may know more of them."""
    known = _pulsar.SchemaType.__members__
    assert {"AVRO", "JSON", "STRING", "INT8", "INT16", "INT32", "INT64"} <= set(known)

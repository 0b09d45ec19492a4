"""Failed rows of jobs in a table: `write_failures` with `table`."""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

import pulsar_retry as pr
from pulsar_retry_spark import (
    PulsarFailuresError,
    QuarantineTable,
    failures,
    read_failures,
    split,
    write_failures,
)
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.quarantine.rows import TABLE, ddl
from pulsar_retry_spark.sink.placing import TablePlace
from support.reading import SOON, SUBSCRIPTION
from support.stored import stored

AT = {"service.url": "pulsar://localhost:1"}


@pytest.fixture
def failed(spark):
    """Give 15 failed rows, all dead letters."""
    _, failed = split(spark.range(30), {"even": "id % 2 = 0"})
    return failures(failed, key="id", retryable=F.lit(False))  # noqa: FBT003 - a constant column


def letters(options, kind="DLQ"):
    """Return the messages of a letter topic."""
    topic, subscription = options["topic"], options["subscription"]
    return stored(options["service.url"], f"{topic}-{subscription}-{kind}")


def id_of(message):
    """Return the id that shows duplicates."""
    return message.properties()["DEDUPE_ID"]


def test_table_and_topics_have_the_same_rows(failed, options, kept):
    """With the same ids; the report counts both."""
    report = write_failures(failed, options, table=kept.table, batch="orders-2024-01-31")

    assert (15, 15) == (report.rows, report.quarantined)
    rows = {row.dedupe_id: row for row in kept.read().collect()}
    messages = {id_of(each): each for each in letters(options)}
    assert rows.keys() == messages.keys()
    for key, row in rows.items():
        assert (bytes(row.payload), row.key) == (
            messages[key].data(),
            messages[key].partition_key(),
        )
        assert "even" == row.reason == messages[key].properties()["FAILURE_REASON"]
        assert "job" == row.quarantine_writer
        assert row.quarantined_at is not None


def test_a_table_needs_no_broker(failed, kept):
    """With options=None; the reasons are counted all the same."""
    report = write_failures(failed, None, table=kept.table)

    assert (0, 15, {"even": 15}) == (report.rows, report.quarantined, report.by_reason)
    assert [15] == list(kept.by_batch().values())


def test_a_batch_replaces_its_own_rows(failed, kept):
    """No others; also if it has none any more. Rows of a batch without a name are added."""

    def write(condition, batch=None):
        return write_failures(failed.where(condition), None, table=kept.table, batch=batch)

    write("true", "a")
    write("key < 10", "b")
    assert {"a": 15, "b": 5} == kept.by_batch()
    write("key < 4", "a")
    assert {"a": 2, "b": 5} == kept.by_batch()
    assert 0 == write("false", "a").quarantined
    assert {"b": 5} == kept.by_batch()
    write("key < 4")
    write("key < 4")
    assert [2, 2, 5] == sorted(kept.by_batch().values())


def test_rows_that_fail_do_not_remove_the_earlier_ones(failed, kept):
    """If the same batch is written again; nothing else is left in the table either."""
    write_failures(failed, None, table=kept.table, batch="a")
    ids = kept.ids()

    broken = failed.withColumn("key", F.expr("if(key = '7', raise_error('broken'), key)"))
    with pytest.raises(Exception, match="broken"):
        write_failures(broken, None, table=kept.table, batch="a")

    assert ids == kept.ids()
    assert 5 == write_failures(failed.limit(5), None, table=kept.table, batch="a").quarantined
    assert {"a": 5} == kept.by_batch()
    if not isinstance(kept.table, str):
        assert ["quarantine_writer=job"] == [each.name for each in Path(kept.table.path).iterdir()]


def test_rows_are_evaluated_once(spark, options, folder):
    """So what is sent is what is in the table, even if each evaluation gives other rows."""
    moody = spark.range(10).selectExpr("uuid() AS payload", "'dead_letter' AS action")

    write_failures(moody, options, table=folder.table)

    payloads = {bytes(row.payload) for row in folder.read().collect()}
    assert payloads == {each.data() for each in letters(options)}
    assert 10 == len(payloads)


FRAMES = {
    "all columns": """SELECT 'text' AS payload, X'FF00' AS key, X'00FE' AS ordering_key,
        'bad' AS reason, 'ValueError' AS error, 'no amount' AS details, 'parse' AS stage,
        array('a', 'b,c') AS rule, 3 AS attempt, 1500L AS delay_ms,
        timestamp'2024-02-29 12:00:00.123' AS event_time,
        'persistent://public/default/o' AS origin_topic, '1:2:-1' AS origin_message_id,
        named_struct('path', 's3://ä', 'n', 7L, 'none', null) AS source, 'd1' AS dedupe_id,
        map('shop', '7', 'RECONSUMETIMES', '9') AS headers""",
    "a tombstone": "SELECT CAST(null AS STRING) AS payload, 'a,b' AS rule, 5L AS event_time",
    "Kafka": """SELECT X'01FF' AS value, X'6B' AS key, 'k' AS topic, 3 AS partition, 4L AS offset,
        array(named_struct('key', 'h', 'value', X'31'), named_struct('key', 'h', 'value', X'32'))
        AS headers, 1.5D AS price, date'2024-02-29' AS day""",
    "pulsar-spark": """SELECT X'01' AS value, 'persistent://public/default/r' AS __topic,
        unhex('08051006') AS __messageId, map('REAL_TOPIC', 'persistent://public/default/first')
        AS __messageProperties""",
}


@pytest.mark.parametrize(
    ("frame", "extra"), [*((each, "properties") for each in FRAMES), ("Kafka", "json")]
)
def test_messages_are_those_that_are_sent_without_a_table(spark, options, folder, frame, extra):
    """In all of their properties but those of the task, and the times."""
    rows = spark.sql(FRAMES[frame])
    direct = options | {"subscription": "direct", "extra": extra}

    write_failures(rows, direct, action="dead_letter")
    write_failures(rows, options | {"extra": extra}, action="dead_letter", table=folder.table)

    def seen(message):
        changing = {"FAILURE_TASK", "FAILURE_TIME", "REAL_SUBSCRIPTION"}
        said = {name: text for name, text in message.properties().items() if name not in changing}
        raw = message._message
        key, content = message.partition_key(), message.data()
        return content, raw.has_null_value(), key, message.event_timestamp(), said

    (expected,), (message,) = letters(direct), letters(options)
    assert seen(expected) == seen(message)


def test_a_redrive_from_the_table_is_one_from_the_topic(spark, client, options, topic, kept):
    """A consumer gets the rows as new work, with the ids of a redrive from the topic."""
    consumer = client.subscribe(
        topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared, enable_retry=True
    )
    _, failed = split(spark.range(6), {"even": "id % 2 = 0"})
    rows = failures(failed, key="id", attempt=4)
    write_failures(rows, options, action="dead_letter", table=kept.table)
    mine = kept.read().withColumn("payload", F.expr("encode('mended', 'utf-8')"))

    report = write_failures(mine.where("reason = 'even'"), options, action="retry")
    once = read_failures(spark, options | {"kind": "dead_letter"})
    write_failures(once, options, action="retry")

    assert {"retry": 3} == report.by_action
    messages = [consumer.receive(SOON) for _ in range(6)]
    assert {1} == {pr.attempt_of(each) for each in messages}
    assert {"1"} == {each.properties()["REDRIVE_COUNT"] for each in messages}
    mended = [id_of(each) for each in messages if each.data() == b"mended"]
    others = [id_of(each) for each in messages if each.data() != b"mended"]
    assert 3 == len(mended)
    assert sorted(mended) == sorted(others)


def test_redrives_from_the_table_are_limited(failed, options, folder):
    """After the last one, a row is a dead letter."""
    write_failures(failed, None, table=folder.table)

    report = write_failures(folder.read(), options | {"max_redrives": 0}, action="retry")

    assert (15, {"dead_letter": 15}) == (report.over_redriven, report.by_action)


def test_too_many_rows_are_neither_kept_nor_sent(failed, options, admin, namespace, folder):
    """The limits are checked first."""
    for limit in ({"max_failed_ratio": 0.1, "total": 100}, {}):
        settings = options if limit else options | {"max_failed_rows": 5}
        with pytest.raises(PulsarFailuresError, match="TOO_MANY_ROWS"):
            write_failures(failed, settings, table=folder.table, **limit)

    assert [] == admin.topics(namespace)
    with pytest.raises(Exception, match="PATH_NOT_FOUND"):
        folder.read()


def test_columns_of_your_own_do_no_harm(spark, failed, options, kept):
    """A table may have more: they are null in new rows, and are not written back."""
    if isinstance(kept.table, str):
        parts = "PARTITIONED BY (quarantine_writer, quarantine_batch)"
        columns = f"{ddl(TABLE)}, owner string, topic int, value string"
        spark.sql(f"CREATE TABLE {kept.table} ({columns}) USING parquet {parts}")
    write_failures(failed, None, table=kept.table, batch="a")

    mine = kept.read().withColumns({"owner": F.lit("me"), "topic": F.lit(1), "Value": F.lit("x")})
    assert 15 == write_failures(mine, options, action="retry").rows

    (said, *_) = letters(options, "RETRY")
    assert not {"owner", "topic", "quarantine_batch", "quarantined_at"} & said.properties().keys()


def test_a_table_of_another_kind_is_refused(spark, failed, options, admin, namespace, kept):
    """Before anything is written."""
    for columns, message in {
        "id long": "a column payload",
        ddl(TABLE | {"attempt": "string"}): "column attempt is bigint, not string",
    }.items():
        if isinstance(kept.table, str):
            spark.sql(f"DROP TABLE IF EXISTS {kept.table}")
            spark.sql(f"CREATE TABLE {kept.table} ({columns}) USING parquet")
        else:
            frame = spark.createDataFrame([], columns)
            frame.write.mode("overwrite").parquet(kept.table.path)
        with pytest.raises(pr.ConfigError, match=message):
            write_failures(failed, options, table=kept.table)
    assert [] == admin.topics(namespace)
    assert 0 == kept.read().count()


def test_a_folder_of_another_kind_is_refused(spark, failed, folder):
    """Delta would not show the rows of such a table, and Spark not read it any more."""
    path = Path(folder.table.path)
    orc = QuarantineTable(path=str(path), format="orc")
    write_failures(failed, None, table=orc, batch="a")
    with pytest.raises(pr.ConfigError, match=r"with parquet files only: .*footer"):
        write_failures(failed, None, table=folder.table, batch="b")

    (path / "_delta_log").mkdir()
    for table in (folder.table, orc):
        with pytest.raises(pr.ConfigError, match="expected format='delta', because"):
            write_failures(failed, None, table=table, batch="b")
    batches = spark.read.orc(str(path)).select("quarantine_batch").distinct().collect()
    assert ["a"] == [row.quarantine_batch for row in batches]


@pytest.mark.parametrize(
    ("kind", "message"),
    [("parquet", "partitioned by quarantine_writer and"), ("json", "not json")],
)
def test_a_table_must_be_able_to_replace_a_batch(spark, failed, kind, message):
    """Without the others."""
    spark.sql(f"CREATE TABLE flat ({ddl(TABLE)}) USING {kind}")
    try:
        with pytest.raises(pr.ConfigError, match=message):
            write_failures(failed, None, table="flat")
    finally:
        spark.sql("DROP TABLE flat")


def test_rows_of_a_table_are_not_kept_again(spark, failed, options, folder, tmp_path):
    """Nor are rows of a topic that are sent at the same time; alone they may be."""
    write_failures(failed, options, table=folder.table)
    letters = read_failures(spark, options)
    other = QuarantineTable(path=str(tmp_path / "other"))

    with pytest.raises(pr.ConfigError, match="not in a quarantine table already"):
        write_failures(folder.read(), options, table=other)
    with pytest.raises(pr.ConfigError, match="options=None"):
        write_failures(letters, options, table=other, action="retry")
    assert 15 == write_failures(letters, None, table=other).quarantined
    moved = spark.read.parquet(other.path)
    assert folder.ids() == sorted(row.dedupe_id for row in moved.collect())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": None}, "options=None: expected the sink's options, or a table"),
        ({"table": 5}, "table=5: expected the name of a table"),
        ({"table": "/data/kept"}, "for a folder, QuarantineTable"),
        ({"batch": "a"}, "together with table"),
        ({"table": "t", "batch": "a/b"}, "batch='a/b': expected 1 to 200 letters"),
    ],
)
def test_bad_arguments_are_refused(failed, arguments, message):
    """Before a job runs."""
    options = {"service.url": "pulsar://localhost:1", "topic": "t", "subscription": "s"}
    with pytest.raises(pr.ConfigError, match=message):
        write_failures(failed, **{"options": options, **arguments})


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"name": "t", "path": "/p"},
        {"name": " "},
        {"path": "/p", "format": "csv"},
        {"name": "t", "writer": "a b"},
    ],
)
def test_bad_tables_are_refused(arguments):
    """When they are made."""
    with pytest.raises(pr.ConfigError, match="expected"):
        QuarantineTable(**arguments)


def test_payloads_that_are_structs_are_refused(spark, folder):
    """A table holds bytes."""
    rows = spark.range(3).select(F.struct("id").alias("payload"))
    with pytest.raises(pr.ConfigError, match="struct<id:bigint>: expected binary or string"):
        write_failures(rows, None, table=folder.table)
    options = SinkOptions.parse({"topic": "t", "subscription": "s", "value.schema": "topic"} | AT)
    with pytest.raises(pr.ConfigError, match="payloads that are structs"):
        TablePlace.of_job(folder.table, rows, "a", options)


def test_reasons_that_never_repeat_do_not_come_to_the_driver(spark, folder):
    """A thousand are counted one by one, the others together."""
    reason = F.when(F.col("id") < 3, "common").otherwise(F.concat(F.lit("r"), "id"))
    rows = spark.range(1503).select(F.lit("x").alias("payload"), reason.alias("reason"))
    report = write_failures(rows, None, table=folder.table)
    assert 1001 == len(report.by_reason)
    assert (3, 501) == (report.by_reason["common"], report.by_reason["(other)"])
    assert 1503 == report.quarantined

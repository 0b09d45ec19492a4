"""Failed rows from a job's own code: `write_failures`."""

from __future__ import annotations

import gc
import json

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import pulsar_retry as pr
from pulsar_retry_spark import PulsarFailuresError, failures, register, split, write_failures
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.sink.sink import arrow_sender
from support.reading import SOON, read_all


@pytest.fixture
def failed(spark):
    """Give 30 failed rows: the even ones of 20 to 49 are too big, and the odd ones odd as well."""
    _, failed = split(spark.range(50), {"even": "id % 2 = 0", "small": "id < 20"})
    return failures(failed, key="id").where("key >= 20")


def caches(spark):
    """Return the ids of what Spark keeps; its garbage collector frees some at any time."""
    return set(spark.sparkContext._jsc.getPersistentRDDs())


def topics(admin, topic):
    """Return the topics of a topic's namespace."""
    return admin.topics(topic.removeprefix("persistent://").rpartition("/")[0])


def test_each_row_is_there_with_its_reason(failed, options, client, dead):
    """What the frame says is what the messages say, and the report counts what is there."""
    report = write_failures(failed, options, action="dead_letter")

    messages = read_all(client, dead, 30)
    assert {str(i): {"id": i} for i in range(20, 50)} == {
        each.partition_key(): json.loads(each.data()) for each in messages
    }
    reasons = [each.properties()["FAILURE_REASON"] for each in messages]
    assert {"even": 15, "small": 15} == {name: reasons.count(name) for name in set(reasons)}
    assert {"even": 15, "small": 15} == report.by_reason
    assert {row.dedupe_id for row in failed.collect()} == {
        each.properties()["DEDUPE_ID"] for each in messages
    }
    assert (30, sum(len(each.data()) for each in messages)) == (report.rows, report.bytes)
    assert {dead: 30} == report.by_topic
    assert {"dead_letter": 30} == report.by_action


def test_modules_are_left_out_of_the_collection_after_each_task(failed, options):
    """Spark runs one in each worker: it took longer than the sending of few rows."""
    send = arrow_sender(SinkOptions.parse(options))

    def count(batches):
        assert 1 == len(list(send(batches)))
        yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()]})

    ((frozen,),) = failed.coalesce(1).mapInArrow(count, "frozen long").collect()
    assert frozen > 50_000


def test_one_rule_makes_ids(failed, options, client, dead):
    """Rows whose frame has none get those that `failures` would have made."""
    write_failures(failed.drop("dedupe_id"), options, action="dead_letter")

    ids = {each.properties()["DEDUPE_ID"] for each in read_all(client, dead, 30)}
    assert ids == {row.dedupe_id for row in failed.collect()}


def test_options_are_as_spark_takes_them(failed, options, dead):
    """Numbers and booleans are options, too; None is as good as left out."""
    values = {"max_attempts": 1, "tls.allow_insecure": False, "delay.levels": None}

    report = write_failures(failed, options | values)

    assert {dead: 30} == report.by_topic


def test_an_action_holds_for_every_row(failed, options, retry):
    """Whatever the rows say themselves."""
    stubborn = failed.withColumn("action", F.lit("dead_letter"))

    assert {retry: 30} == write_failures(stubborn, options, action="retry").by_topic


def test_more_rows_than_may_fail_are_not_written(spark, failed, options, admin, topic):
    """A job that fails on nearly everything is itself at fault: nothing is sent."""
    before = caches(spark)
    with pytest.raises(PulsarFailuresError, match="none was sent") as error:
        write_failures(failed, options | {"max_failed_rows": 29})
    assert "TOO_MANY_ROWS" == error.value.slug
    assert [] == topics(admin, topic)

    assert 30 == write_failures(failed, options | {"max_failed_rows": 30}).rows
    assert caches(spark) <= before


def test_the_users_cache_stays(spark, failed, options):
    """What was in the cache before is there afterwards."""
    failed.persist()
    try:
        write_failures(failed, options | {"max_failed_rows": 30})

        assert failed.storageLevel.useMemory
    finally:
        failed.unpersist()


def test_what_a_task_could_not_write_is_the_error(failed, options):
    """Not a Spark error with a traceback in it, but ours, with its slug."""
    large = failed.withColumn("payload", F.repeat(F.lit("x"), 2000))

    with pytest.raises(PulsarFailuresError, match="max_message_bytes=1024") as error:
        write_failures(large, options | {"max_message_bytes": 1024})

    assert "OVERSIZE" == error.value.slug
    assert error.value.__cause__ is not None


@pytest.mark.parametrize("limit", [{}, {"max_failed_rows": 5}])
def test_what_a_task_could_not_read_is_the_error(spark, options, limit):
    """Rows that come from this package's own source fail while they are written, or counted."""

    def unread(_batches):
        raise PulsarSourceError("TIMEOUT", "none has come for 60 s")

    rows = spark.range(1).mapInArrow(unread, "payload string")

    with pytest.raises(PulsarSourceError, match="none has come") as error:
        write_failures(rows, options | limit)

    assert "TIMEOUT" == error.value.slug


def test_errors_of_others_pass(spark, options):
    """A row that can't even be computed is no failure of the sink's."""
    broken = spark.sql("select raise_error('not ours') as payload")

    with pytest.raises(Exception, match="not ours") as error:
        write_failures(broken, options)

    assert not isinstance(error.value, PulsarFailuresError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"action": "ack"}, "action='ack': expected 'retry', 'dead_letter' or None"),
        ({"keep_attempts": True, "action": "retry"}, "keep_attempts=True: expected"),
        ({"options": {"delay.level": 5}}, "unknown option 'delay.level': did you mean delay"),
        ({"options": {"service.url": None}}, "service.url=None"),
    ],
)
def test_bad_arguments_are_refused(failed, options, arguments, message):
    """Before a job runs."""
    more = arguments.pop("options", {})

    with pytest.raises(pr.ConfigError, match=message.replace("(", r"\(")):
        write_failures(failed, options | more, **arguments)


def test_bad_columns_are_refused(spark, options):
    """Before a job runs, too."""
    with pytest.raises(pr.ConfigError, match="unknown column 'reasom'"):
        write_failures(spark.sql("select 'p' as payload, 'x' as reasom"), options)


def test_a_stream_is_refused(spark, options):
    """The error names what takes one."""
    stream = failures(spark.readStream.format("rate").load(), reason="late")

    with pytest.raises(pr.ConfigError, match="writeStream, or route_batches"):
        write_failures(stream, options)


@pytest.fixture
def read_back(spark, failed, options):
    """Give a function that reads the dead-letter topic as a frame."""
    register(spark)
    source = options | {"kind": "dead_letter"}

    def read():
        return spark.read.format("pulsar-failures").options(**source).load()

    return read


def test_dead_letters_go_back_to_work(failed, options, consumer, retry, read_back):
    """Read, mended in SQL and written again, they are a consumer's first attempt, and at once."""
    letters = failed.withColumns({"attempt": F.lit(17), "delay_ms": F.lit(7_200_000)})
    assert {"dead_letter": 30} == write_failures(letters, options).by_action

    mended = read_back().withColumn("payload", F.encode(F.lit("mended"), "utf-8"))
    report = write_failures(mended, options, action="retry")

    assert {retry: 30} == report.by_topic
    messages = [consumer.receive(SOON) for _ in range(30)]
    assert {b"mended"} == {each.data() for each in messages}
    assert {1} == {pr.attempt_of(each) for each in messages}
    assert {"1"} == {each.properties()["REDRIVE_COUNT"] for each in messages}
    assert {"0"} == {each.properties()["DELAY_TIME"] for each in messages}
    ids = {each.properties()["DEDUPE_ID"] for each in messages}
    assert 30 == len(ids), "each has an id"
    assert ids.isdisjoint(row.dedupe_id for row in failed.collect()), "of this turn"


def test_attempts_can_be_kept(failed, options, consumer, read_back):
    """For letters whose attempts were none of their own fault."""
    write_failures(failed.withColumn("attempt", F.lit(4)), options, action="dead_letter")

    write_failures(
        read_back(), options | {"delay.levels": "0s"}, action="retry", keep_attempts=True
    )

    assert {5} == {pr.attempt_of(consumer.receive(SOON)) for _ in range(30)}

"""Effectively once, on a broker that deduplicates: no row twice, and no row lost for that."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import closing

import pulsar
import pyarrow as pa
import pytest
from _pulsar import MessageBuilder, Result
from pyspark.errors import StreamingQueryException

from pulsar_retry import ConfigError
from pulsar_retry_spark import clients, route_batches, split, write_failures
from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.exactly_once.manifest import _settled, claimed
from pulsar_retry_spark.exactly_once.task import Task
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.sink.sink import send_batches
from support.reading import SUBSCRIPTION, eventually
from support.stored import QUIET, payloads, stored


@pytest.fixture(autouse=True)
def nothing_remembered():
    """Let no client outlive the topics of its test."""
    _settled.cache_clear()
    yield
    clients.close_all()


def deduplicate(admin, namespace, *, enabled):
    """Switch the namespace's deduplication on or off."""
    admin.set_namespace_policy(namespace, "deduplication", enabled)


@pytest.fixture
def options(options, admin, namespace):
    """Give options for a namespace that deduplicates."""
    deduplicate(admin, namespace, enabled=True)
    return options | {
        "max_attempts": "1",  # dead letters all
        "delivery": "effectively-once",
        "sink.id": "job",
        "sink.partitions": "2",
        "batch.messages": "100",
    }


# --- Why ------------------------------------------------------------------------------------------


def send_numbered(client, topic, *, cuts):
    """Send rows 1, 2, … under one name, in batches that end at *cuts*; return the receipts."""
    producer = client.create_producer(
        topic,
        producer_name="naive",
        batching_enabled=True,
        batching_max_messages=1000,
        batching_max_publish_delay_ms=3_600_000,
    )
    receipts = []
    for row in range(1, max(cuts) + 1):
        message = MessageBuilder().content(b"%d" % row).sequence_id(row).build()
        producer._producer.send_async(message, lambda result, _id: receipts.append(result))
        if row in cuts:
            producer.flush()
    producer.close()
    return receipts


def test_batches_that_end_by_time_lose_rows(broker, options, topic):
    """What a timer does: the second attempt's batch has old rows first, and new ones with them.

    The first attempt dies after row 150, whose batch a timer has ended. In the second one the same
    batch is full. The broker looks at its first number, and drops it: 50 rows are lost, and each
    of them has a receipt that says Ok.
    """
    assert options
    with closing(pulsar.Client(broker.service_url, logger=QUIET)) as client:
        send_numbered(client, topic, cuts={100, 150})
        receipts = send_numbered(client, topic, cuts={100, 200})
    assert {Result.Ok: 200} == Counter(receipts)
    assert {b"%d" % row for row in range(1, 151)} == set(
        payloads(stored(broker.service_url, topic))
    )


def rows(count, first=0):
    """Return a record batch of failed rows, in order."""
    numbers = range(first, first + count)
    return pa.record_batch(
        {"payload": [b"%d" % n for n in numbers], "dedupe_id": [f"{n:06d}" for n in numbers]}
    )


@pytest.mark.parametrize("died_after", [1, 99, 150, 1000, 1234])
def test_a_task_that_died_anywhere(broker, options, dead, died_after):
    """Its next attempt sends all again, and none is stored twice or lost."""
    once = claimed(SinkOptions.parse(options), None, "rows")

    def dying():
        yield rows(died_after)
        clients.close_all()  # what is in pulsar-client's hands is gone, as with its process
        raise RuntimeError

    with pytest.raises(RuntimeError):
        send_batches(dying(), once, Task())
    before = len(stored(broker.service_url, dead)) if died_after >= 100 else 0
    report = send_batches([rows(1000), rows(1050, 1000)], once, Task(attempt=1))

    assert before == report.duplicates
    assert {b"%d" % n: 1 for n in range(2050)} == payloads(stored(broker.service_url, dead))


def test_delayed_rows_and_partitions(broker, admin, options, topic):
    """Rows that go different ways are numbered together, and known again on each."""
    retry, dead = (f"{topic}-{SUBSCRIPTION}-{kind}" for kind in ("RETRY", "DLQ"))
    admin.create_partitioned_topic(dead, 3)
    once = claimed(SinkOptions.parse(options | {"max_attempts": "3", "delay": "3600"}), None, "")
    batch = rows(900).append_column("attempt", pa.array([n % 4 for n in range(900)]))

    reports = [send_batches([batch], once, Task(attempt=attempt)) for attempt in (0, 1)]

    assert [0, 900] == [report.duplicates for report in reports]
    dead_letters = stored(broker.service_url, *(f"{dead}-partition-{n}" for n in range(3)))
    letters = stored(broker.service_url, retry)
    assert {b"%d" % n: 1 for n in range(900) if n % 4 == 3} == payloads(dead_letters)
    assert {b"%d" % n: 1 for n in range(900) if n % 4 < 3} == payloads(letters)


# --- What is refused ------------------------------------------------------------------------------


def test_a_namespace_that_does_not_deduplicate(broker, admin, namespace, topic, options):
    """Found out by trying, before anything is sent."""
    deduplicate(admin, namespace, enabled=False)

    said = []

    def refused():
        _settled.cache_clear()
        try:
            claimed(SinkOptions.parse(options), None, "rows")
        except ConfigError as error:
            said.append(str(error))
        return bool(said)  # not at once: the broker has to hear of the change

    eventually(refused)
    assert "a namespace with deduplication: pulsar-admin" in said[0]
    assert not [name for name in admin.topics(namespace) if name.endswith("DLQ")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sink.partitions": "3"}, "sink.partitions=3 was 2 when this sink.id was first used"),
        ({"batch.messages": "50"}, "batch.messages=50 was 100"),
        ({"max_attempts": "2"}, "max_attempts=2 was 1"),
        ({"max_redrives": "2"}, "max_redrives=2 was 5"),
    ],
)
def test_options_that_have_changed(options, change, message):
    """Rows would travel in other batches, and some be lost."""
    claimed(SinkOptions.parse(options), None, "rows")
    with pytest.raises(ConfigError) as caught:
        claimed(SinkOptions.parse(options | change), None, "rows")
    assert str(caught.value).startswith(message)
    claimed(SinkOptions.parse(options | change | {"sink.id": "other"}), None, "rows")


def test_a_topic_that_has_got_more_partitions(admin, options, dead):
    """On the driver; and on a worker, if it was since."""
    admin.create_partitioned_topic(dead, 2)
    once = claimed(SinkOptions.parse(options), None, "rows")
    admin.call("POST", f"persistent/{dead.removeprefix('persistent://')}/partitions", 4)

    with pytest.raises(PulsarFailuresError, match=r"PARTITIONS_CHANGED\] .* now has 4 partitions"):
        send_batches([rows(10)], once, Task())
    _settled.cache_clear()
    with pytest.raises(ConfigError, match=r"partitions={.*4.*} was {.*2.*}"):
        claimed(SinkOptions.parse(options), None, "rows")


def test_rows_that_are_not_in_order(broker, options, dead):
    """Then no full batch is sent: their numbers would be others' the next time."""
    once = claimed(SinkOptions.parse(options), None, "rows")
    with pytest.raises(PulsarFailuresError, match="NOT_ORDERED"):
        send_batches([rows(10, 10), rows(10)], once, Task())
    assert not stored(broker.service_url, dead)


# --- The helpers ----------------------------------------------------------------------------------


@pytest.fixture
def failed(spark):
    """Give failed rows."""
    return spark.range(1000, numPartitions=5).selectExpr(
        "cast(id AS STRING) AS payload", "'invalid' AS reason"
    )


def test_the_same_job_again(broker, options, dead, failed):
    """Whatever order its rows come in: they are known again."""
    first = write_failures(failed, options)
    again = write_failures(failed.repartition(7).orderBy("payload", ascending=False), options)

    assert (1000, 0) == (first.rows, first.duplicates)
    assert (1000, 1000) == (again.rows, again.duplicates)
    assert {b"%d" % n: 1 for n in range(1000)} == payloads(stored(broker.service_url, dead))


def test_another_job_under_the_same_id(broker, options, dead, failed):
    """Its rows would be taken for the first one's and be lost, so it is refused."""
    write_failures(failed, options)
    with pytest.raises(ConfigError, match=r"rows='999 rows, .*' was '1000 rows, "):
        write_failures(failed.where("payload <> '7'"), options)
    write_failures(failed.where("payload <> '7'"), options | {"sink.id": "another"})
    assert 1999 == len(stored(broker.service_url, dead))


@pytest.mark.parametrize("column", ["'transient' AS reason", "map('a', payload) AS headers"])
def test_rows_that_go_elsewhere_under_the_same_id(options, failed, column):
    """Everything about a row may decide which topic, number or batch it gets."""
    write_failures(failed.selectExpr("payload", "'invalid' AS reason"), options)
    name = column.rpartition(" ")[2]
    changed = failed.drop(name).selectExpr("*", column)
    with pytest.raises(ConfigError, match=r"rows='1000 rows, .*' was '1000 rows, "):
        write_failures(changed, options)


def test_at_least_once_beside_it(broker, options, dead, failed):
    """Other jobs may write to the same topics as they like."""
    others = {k: v for k, v in options.items() if not k.startswith(("delivery", "sink."))}
    write_failures(failed, options)
    write_failures(failed, others)
    assert 2000 == len(stored(broker.service_url, dead))


@pytest.fixture
def query(spark, tmp_path):
    """Return a function that runs a stream of two micro-batches to its end."""
    for name in ("a", "b"):
        lines = "".join(f'{{"id": {n}}}\n' for n in range(300) if (n < 150) == (name == "a"))
        (tmp_path / name).write_text(lines)
    source = spark.readStream.schema("id INT").option("maxFilesPerTrigger", 1)
    stream = source.json(f"{tmp_path}/[ab]")

    def query(route, checkpoint):
        started = (
            stream.writeStream.foreachBatch(route)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        started.awaitTermination()

    return query


def judged(batch):
    """Judge all rows as failed."""
    good, failed = split(batch, {"none": "id < 0"})
    return good, failed.selectExpr("cast(id AS STRING) AS payload", "reason")


def test_a_micro_batch_that_is_replayed(broker, options, dead, query, tmp_path):
    """As after a failure between its write and its commit."""
    reports = []
    route = route_batches(
        judged,
        options,
        write_good=lambda *_: None,
        on_report=lambda report, batch: reports.append((batch, report.rows, report.duplicates)),
    )
    query(route, tmp_path / "one")
    shutil.rmtree(tmp_path / "one" / "commits")
    query(route, tmp_path / "one")

    assert [(0, 150, 0), (1, 150, 0), (1, 150, 150)] == reports
    assert {b"%d" % n: 1 for n in range(300)} == payloads(stored(broker.service_url, dead))


def test_a_micro_batch_that_has_other_rows_now(broker, options, dead, query, tmp_path):
    """As after a repair of the handler: its rows would be taken for the old ones and be lost."""
    query(route_batches(judged, options, write_good=lambda *_: None), tmp_path / "one")
    shutil.rmtree(tmp_path / "one" / "commits")

    def repaired(batch):
        good, failed = judged(batch)
        return good, failed.where("payload <> '200'")

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=r"149 rows, .* sent with 150 rows, "):
            query(route_batches(repaired, options, write_good=lambda *_: None), tmp_path / "one")
    anew = options | {"sink.id": "repaired"}
    query(route_batches(repaired, anew, write_good=lambda *_: None), tmp_path / "one")

    found = payloads(stored(broker.service_url, dead))
    assert {b"%d" % n: 1 + (n >= 150 and n != 200) for n in range(300)} == found


def test_a_new_checkpoint_is_another_query(broker, options, dead, query, tmp_path):
    """Its micro-batches are numbered from 0 again, and none of its rows is lost for that."""
    route = route_batches(judged, options, write_good=lambda *_: None)
    query(route, tmp_path / "one")
    query(route, tmp_path / "two")
    assert {b"%d" % n: 2 for n in range(300)} == payloads(stored(broker.service_url, dead))


def test_a_stream_that_has_changed_its_options(options, query, tmp_path):
    """The query fails before the micro-batch is written."""
    query(route_batches(judged, options, write_good=lambda *_: None), tmp_path / "one")
    shutil.rmtree(tmp_path / "one" / "commits")
    changed = route_batches(judged, options | {"batch.messages": "7"}, write_good=lambda *_: None)
    with pytest.raises(StreamingQueryException, match=r"batch\.messages=7 was 100"):
        query(changed, tmp_path / "one")

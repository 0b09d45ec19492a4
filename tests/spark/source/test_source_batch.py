"""`spark.read.format("pulsar-failures")`: what retry and dead-letter topics hold."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from urllib.error import HTTPError

import pulsar
import pytest
from pyspark.errors import AnalysisException

import pulsar_retry as pr
from pulsar_retry.native.loading import Native
from pulsar_retry_spark import register
from pulsar_retry_spark.clients import CachedClient
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.source import extent, reading
from pulsar_retry_spark.source.batch import schema
from pulsar_retry_spark.source.source import FailureReader
from support.reading import SOON, SUBSCRIPTION, read_all
from support.spark.sourcing import forget, frame, numbers, payloads, trim
from support.waiting import eventually


@pytest.fixture
def read(spark, letters):
    """Return a function that reads all rows, in the order of each topic."""

    def read(**options):
        return frame(spark, letters.options, **options).collect()

    return read


# -- what there is ----------------------------------------------------------------------------


def test_both_topics_are_read(letters, read):
    """Each row tells where it was read, in the order of writing; also one that is not due yet."""
    dead = letters.send(b"a", b"\xff\x00", b"")
    (retry,) = letters.send(b"later", to=letters.retry, deliver_after=dt.timedelta(days=1))

    rows = read()

    assert [
        ("retry", letters.retry, retry, b"later"),
        ("dead_letter", letters.dead, dead[0], b"a"),
        ("dead_letter", letters.dead, dead[1], b"\xff\x00"),
        ("dead_letter", letters.dead, dead[2], b""),
    ] == [(row.kind, row.topic, row.message_id, bytes(row.payload)) for row in rows]


def test_looking_leaves_no_trace(letters, read, admin, namespace):
    """No topic is created, and no subscription is left, not even by planning."""
    letters.send(b"a")
    before = admin.topics(namespace)
    assert [b"a"] == payloads(read())
    assert before == admin.topics(namespace) == [letters.dead]
    eventually(lambda: admin.stats(letters.dead)["subscriptions"] == {})


def test_topics_that_do_not_exist_are_empty_and_named(spark, letters, admin, namespace, caplog):
    """Once for both; one alone is missing wherever nothing was retried yet."""
    assert 0 == frame(spark, letters.options).count()
    assert [] == admin.topics(namespace)
    FailureReader(letters.options, schema()).partitions()
    (record,) = (each for each in caplog.records if each.name == "pulsar_retry")
    assert f"there is no {letters.retry} and no {letters.dead}: " in record.getMessage()

    caplog.clear()
    admin.create_topic(letters.dead)
    FailureReader(letters.options, schema()).partitions()
    assert [] == [each for each in caplog.records if each.name == "pulsar_retry"]


def test_empty_topics_are_empty(letters, read, admin):
    """With and without partitions."""
    admin.create_topic(letters.dead)
    admin.create_partitioned_topic(letters.retry, 2)
    assert [] == read()


def test_what_the_broker_deleted_is_not_waited_for(letters, read, admin):
    """There is no subscription that keeps dead letters until a stream makes one."""
    letters.send(b"a", b"b")
    forget(admin, letters, b"c")
    assert [b"c"] == payloads(read())


@pytest.mark.parametrize("options", [{}, {"startingTime": "1"}])
def test_what_is_deleted_before_it_is_read_is_an_error(letters, admin, options):
    """Unless the options accept that."""
    letters.send(b"a")
    readers = [
        FailureReader(letters.options | options | more, schema())
        for more in ({}, {"fail_on_data_loss": "false"})
    ]
    planned = [reader.partitions() for reader in readers]
    forget(admin, letters, b"c")

    with pytest.raises(PulsarSourceError, match="DATA_LOSS"):
        list(readers[0].read(*planned[0]))
    assert [] == list(readers[1].read(*planned[1]))


def test_the_first_letter_since_a_time_comes_during_planning(letters, monkeypatch):
    """It is behind the end, so the query does not read it, and misses nothing."""
    letters.send(b"a")
    since = round(time.time() * 1000) + 1
    message_at = extent.message_at

    def looked_up(client, name, at, *more):
        found = message_at(client, name, at, *more)
        if at is pulsar.MessageId.latest:
            letters.send(b"b")
        return found

    monkeypatch.setattr(extent, "message_at", looked_up)
    reader = FailureReader(letters.options | {"startingTime": str(since)}, schema())
    assert [] == [batch for each in reader.partitions() for batch in reader.read(each)]


def test_partitions_are_read_side_by_side(spark, letters, admin):
    """One task each; the topic's name is that of all of them."""
    admin.create_partitioned_topic(letters.dead, 3)
    for number in range(9):
        letters.send(str(number).encode(), partition_key=str(number))

    rows = frame(spark, letters.options)

    assert 3 == rows.rdd.getNumPartitions()
    found = rows.collect()
    assert sorted(str(n).encode() for n in range(9)) == sorted(payloads(found))
    assert {letters.dead} == {row.topic for row in found}
    assert {"0", "1", "2"} == {row.message_id.split(":")[2] for row in found}


def test_messages_of_a_batch_are_rows(letters, read):
    """Each with an id of its own, as Java prints it."""
    letters.send_batch(b"a", b"b", b"c")
    letters.send(b"d")
    rows = read()
    assert [b"a", b"b", b"c", b"d"] == payloads(rows)
    ids = [row.message_id for row in rows]
    ledger = ids[0].split(":")[0]
    assert [f"{ledger}:0:-1:{n}" for n in range(3)] + [f"{ledger}:1:-1"] == ids


@pytest.mark.parametrize("last", ["chunked", "plain"])
def test_chunked_messages_are_rows(letters, read, last):
    """Also where the topic ends with the last chunk, which is no message by itself."""
    large = bytes(range(256)) * 50_000  # 12.8 MB, in chunks of 5 MiB
    ids = letters.send(b"before", large, *([b"after"] if last == "plain" else []))
    rows = read()
    assert [b"before", large, b"after"][: len(ids)] == payloads(rows)
    assert ids == [row.message_id for row in rows]


def test_compaction_hides_nothing(letters, read, admin):
    """Dead letters with one key are several failures."""
    letters.send(b"1", b"2", partition_key="k")
    path = letters.dead.replace("://", "/") + "/compaction"
    admin.call("PUT", path)
    eventually(lambda: admin.get(path)["status"] == "SUCCESS")
    assert [b"1", b"2"] == payloads(read())


@pytest.mark.parametrize("all_of_it", [True, False])
def test_what_is_deleted_after_planning_is_an_error(letters, admin, all_of_it):
    """A query that leaves rows out says so, unless it is told not to."""
    path = letters.dead.replace("://", "/")
    admin.create_topic(letters.dead)
    admin.call("PUT", f"{path}/subscription/keeper")
    letters.send(b"a", b"b")
    admin.unload(letters.dead)  # begins another ledger
    if not all_of_it:
        letters.send(b"c")
    readers = [
        FailureReader({**letters.options, "fail_on_data_loss": each}, schema())
        for each in ("true", "false")
    ]
    tasks = [reader.partitions()[0] for reader in readers]
    letters.send(b"too late")

    admin.call("DELETE", f"{path}/subscription/keeper")
    trim(admin, letters.dead, lambda ledgers: len(ledgers) == 1)

    with pytest.raises(PulsarSourceError, match=r"\[PULSAR_SOURCE_DATA_LOSS\].* deleted it before"):
        list(readers[0].read(tasks[0]))
    left = [row["payload"] for batch in readers[1].read(tasks[1]) for row in batch.to_pylist()]
    assert ([] if all_of_it else [b"c"]) == left


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "python"])
@pytest.mark.parametrize("ledgers", [1, 2])
def test_messages_that_expire_while_they_are_read(
    letters, admin, namespace, monkeypatch, is_native, ledgers
):
    """The broker moves every reader past them; while they are kept, they are rows."""
    if not is_native:
        monkeypatch.setattr(reading, "native_rows", lambda: Native(None, "a test"))
    monkeypatch.setattr(reading, "_BATCH_ROWS", 5)
    kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    admin.set_namespace_policy(namespace, "retention", kept)
    for part in range(ledgers):
        letters.send(*numbers(part * 100, part * 100 + 100))
        if part + 1 < ledgers:
            admin.unload(letters.dead)
    count = 100 * ledgers
    reader = FailureReader(letters.options | {"receive.queue": "10"}, schema())
    (task,) = reader.partitions()
    batches = reader.read(task)
    rows = next(batches).column("payload").to_pylist()

    path = letters.dead.replace("://", "/")

    def passed_over():
        with contextlib.suppress(HTTPError):  # none is as old as that yet
            admin.call("POST", f"{path}/all_subscription/expireMessages/1")
        cursors = admin.get(f"{path}/internalStats")["cursors"].values()
        return all(int(each["readPosition"].split(":")[1]) >= 99 for each in cursors)

    eventually(passed_over)
    letters.send(b"later")
    rows += [each for batch in batches for each in batch.column("payload").to_pylist()]

    assert numbers(count) == rows


@pytest.mark.parametrize("strict", ["true", "false"])
def test_ledgers_that_are_deleted_while_they_are_read(letters, admin, monkeypatch, strict):
    """Rows between the first and the last one are gone, which is an error unless it is accepted."""
    monkeypatch.setattr(reading, "_BATCH_ROWS", 5)
    path = letters.dead.replace("://", "/")
    admin.create_topic(letters.dead)
    admin.call("PUT", f"{path}/subscription/keeper")
    for part in range(2):
        letters.send(*numbers(part * 100, part * 100 + 100))
        admin.unload(letters.dead)
    letters.send(b"last")
    more = {"receive.queue": "10", "fail_on_data_loss": strict}
    reader = FailureReader(letters.options | more, schema())
    (task,) = reader.partitions()
    batches = reader.read(task)
    rows = next(batches).column("payload").to_pylist()

    admin.call("DELETE", f"{path}/subscription/keeper")
    trim(admin, letters.dead, lambda ledgers: len(ledgers) == 1)

    if strict == "true":
        with pytest.raises(PulsarSourceError, match=r"DATA_LOSS\] .* deleted"):
            list(batches)
    else:
        rows += [each for batch in batches for each in batch.column("payload").to_pylist()]
        assert b"last" == rows[-1]


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "python"])
def test_large_messages_do_not_fill_the_memory_of_a_worker(letters, monkeypatch, is_native):
    """A reader fetches some record batches ahead, and not its queue full of large messages."""
    if not is_native:
        monkeypatch.setattr(reading, "native_rows", lambda: Native(None, "a test"))
    monkeypatch.setattr(reading, "_BATCH_BYTES", 1000)
    letters.send(*[b"small"] * 5, *(b"%100d" % number for number in range(100)))
    reader, queues, opened = FailureReader(letters.options, schema()), [], CachedClient.reader
    (task,) = reader.partitions()

    def noted(client, topic, start, queue=1, **more):
        queues.append(queue)
        return opened(client, topic, start, queue, **more)

    monkeypatch.setattr(CachedClient, "reader", noted)
    rows = [each for batch in reader.read(task) for each in batch.column("payload").to_pylist()]

    assert [b"small"] * 5 == rows[:5]
    assert list(range(100)) == list(map(int, rows[5:]))
    assert 1000 == queues[0]
    assert 0 < max(queues[1:]) <= reading._AHEAD * 15


def test_a_broker_that_gives_nothing_is_an_error(letters, monkeypatch):
    """And not taken for a topic that ends with a part of a message."""
    letters.send(b"a", b"b")

    def nothing(*_):
        raise pulsar.Timeout

    monkeypatch.setattr(pulsar.Reader, "read_next", nothing)
    with pytest.raises(PulsarSourceError, match=r"\[PULSAR_SOURCE_TIMEOUT\] .* neither the first"):
        FailureReader(letters.options, schema()).partitions()


def test_what_comes_later_is_not_read(letters, broker):
    """The end is that of the plan, for each partition."""
    letters.send_batch(b"a", b"b")
    reader = FailureReader(letters.options, schema())
    (partition,) = reader.partitions()
    letters.send(b"too late")
    (batch,) = reader.read(partition)
    assert [b"a", b"b"] == batch.column("payload").to_pylist()


# -- whose letters ----------------------------------------------------------------------------


def test_letters_of_the_consumer_are_decoded(letters, read):
    """Attempt, delay, reason and origin."""
    consumer = letters.client.subscribe(
        letters.topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared, enable_retry=True
    )
    (origin,) = letters.send(
        b"order", to=letters.topic, properties={"shop": "7"}, partition_key="k"
    )
    consumer.reconsume_later(consumer.receive(SOON), delay=0.01)
    consumer.dead_letter(consumer.receive(SOON), reason="bad", error=ValueError("no amount"))
    consumer.close()

    retry, dead = read()

    assert (1, 10) == (retry.attempt, retry.delay_ms)
    for row in (retry, dead):
        assert (b"order", "k", letters.topic, origin) == (
            bytes(row.payload),
            row.key,
            row.origin_topic,
            row.origin_message_id,
        )
        assert ("7", SUBSCRIPTION) == (row.headers["shop"], row.headers["REAL_SUBSCRIPTION"])
    assert ("bad", "ValueError", "no amount") == (dead.reason, dead.error, dead.details)


def test_dead_letters_of_the_bare_client_are_decoded(broker, letters, read, admin):
    """The C++ client prints ids in a way of its own, and counts nothing."""
    client = pulsar.Client(
        broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    consumer = client.subscribe(
        letters.topic,
        SUBSCRIPTION,
        pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1, letters.dead),
    )
    (origin,) = letters.send(b"poison", to=letters.topic)
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(SOON))
    read_all(letters.client, letters.dead, 1)
    # pulsar-client can crash if it is closed before it has acknowledged the original.
    eventually(lambda: not admin.backlog(letters.topic, SUBSCRIPTION))
    client.close()

    (row,) = read(kind="dead_letter")

    assert (b"poison", origin, letters.topic) == (
        bytes(row.payload),
        row.origin_message_id,
        row.origin_topic,
    )
    assert (None, {}) == (row.attempt, row.headers)


@pytest.mark.parametrize("naming", ["tdmq-2.7.2", "tdmq-2.6.1"])
def test_dialects_are_read(letters, read, naming):
    """Under the names that TDMQ's clusters use, with the level that its clients write."""
    names = pr.Naming.of(naming).topics(letters.topic, SUBSCRIPTION)
    consumer = letters.client.subscribe(
        letters.topic,
        SUBSCRIPTION,
        consumer_type=pulsar.ConsumerType.Shared,
        enable_retry=True,
        naming=naming,
    )
    letters.send(b"order", to=letters.topic)
    consumer.reconsume_later(consumer.receive(SOON), level=1)
    consumer.close()
    (row,) = read(naming=naming)
    assert (names.retry, 1000, "1") == (row.topic, row.delay_ms, row.headers["DELAY"])


def test_old_names_are_read_where_they_exist(letters, read, namespace):
    """That is where a consumer writes then, each by itself."""
    old = f"persistent://{namespace}/{SUBSCRIPTION}-DLQ"
    letters.send(b"old", to=old)
    letters.send(b"unread", to=letters.dead)
    letters.send(b"new", to=letters.retry)
    assert {(old, b"old"), (letters.retry, b"new")} == {
        (row.topic, bytes(row.payload)) for row in read()
    }


# -- queries ----------------------------------------------------------------------------------


def test_wrong_options_are_named_on_the_driver(spark, letters):
    """With the option and what is accepted; the source has its own schema."""
    register(spark)
    reader = spark.read.format("pulsar-failures").options(**letters.options)
    with pytest.raises(AnalysisException, match="schema: expected none"):
        reader.schema("payload binary").load().collect()
    with pytest.raises(AnalysisException, match=r"receive\.queue='none': expected a whole number"):
        frame(spark, letters.options, receive__queue="none").collect()

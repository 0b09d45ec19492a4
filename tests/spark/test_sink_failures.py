"""What survives kills, restarts and stalls while rows are written: every row, at least once."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import defaultdict
from pathlib import Path

import chaos
import pyarrow as pa
import pytest
from reading import SUBSCRIPTION, eventually
from stored import payloads, stored

from pulsar_retry_spark import clients
from pulsar_retry_spark.datasource import register
from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.sink import send_batches
from pulsar_retry_spark.task import Task

ROWS = 40_000

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks for workers in /proc")


def ids_of(messages):
    """Return the dedupe ids that each payload has, and the attempts of tasks that wrote it."""
    ids, attempts = defaultdict(set), set()
    for message in messages:
        said = message.properties()
        ids[message.data()].add(said["DEDUPE_ID"])
        attempts.add(json.loads(said["FAILURE_TASK"])["attempt"])
    return ids, attempts


@pytest.fixture
def small_batches(spark):
    """Let many batches come to a task instead of one big one."""
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(key)
    spark.conf.set(key, "1000")
    yield
    spark.conf.set(key, before)


@linux_only
@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("spark", ["local[2,4]"], indirect=True)
def test_a_worker_that_is_killed_loses_nothing(spark, broker, admin, topic, tmp_path):
    """Spark runs its task again: some rows are there twice, and their ids tell."""
    register(spark)
    chaos.by_value()
    dead, go = f"{topic}-{SUBSCRIPTION}-DLQ", str(tmp_path / "go")

    def first() -> None:
        chaos.await_file(go)
        chaos.kill_other_workers()

    def written() -> bool:
        return dead in admin.topics(dead.split("://")[1].rpartition("/")[0]) and (
            admin.stats(dead)["msgInCounter"] > 1000
        )

    def give_the_sign() -> None:
        eventually(written, within=60)
        Path(go).touch()

    sign = threading.Thread(target=give_the_sign)
    sign.start()
    frame = spark.range(ROWS, numPartitions=2).selectExpr(
        "cast(id AS STRING) AS payload", "false AS retryable"
    )
    frame = frame.mapInArrow(chaos.pause(15, first), frame.schema)
    frame.write.format("pulsar-failures").options(
        **{"service.url": broker.service_url, "topic": topic, "subscription": SUBSCRIPTION}
    ).mode("append").save()
    sign.join()

    messages = stored(broker.service_url, dead)
    ids, attempts = ids_of(messages)
    assert {str(number).encode() for number in range(ROWS)} == set(ids)
    assert {1} == {len(each) for each in ids.values()}
    assert len(messages) > ROWS, "the kill came too late to mean anything"
    assert 1 in attempts


def batches(count, rows=1000):
    """Yield record batches of failed rows, and nothing between them but time."""
    for number in range(count):
        first = number * rows
        payload = [b"%d" % row for row in range(first, first + rows)]
        yield pa.record_batch({"payload": payload, "retryable": [False] * rows})


def options(url, topic, **more):
    """Return options of a sink."""
    given = {key.replace("__", "."): value for key, value in more.items()}
    base = {"service.url": url, "topic": topic, "subscription": SUBSCRIPTION}
    return SinkOptions.parse(base | given)


@pytest.fixture(autouse=True)
def closed_clients():
    """Let no client outlive the topics of its test, or its broker."""
    yield
    clients.close_all()


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_broker_that_goes_and_comes_again(own_broker, how):
    """Within the time that a receipt may take; the task does not even notice."""

    def interrupted():
        for number, batch in enumerate(batches(40)):
            if number == 20:
                if how == "restart":
                    own_broker.restart()
                else:
                    own_broker.kill()
                    own_broker.start()
            yield batch

    report = send_batches(interrupted(), options(own_broker.service_url, how), Task())

    assert (40_000, 40_000) == (report.rows, report.acked)
    got = payloads(stored(own_broker.service_url, f"{how}-{SUBSCRIPTION}-DLQ"))
    assert {b"%d" % row for row in range(40_000)} == set(got)


def test_a_broker_that_stalls_is_an_error_and_no_hang(own_broker):
    """After as long as the user says; the next attempt goes through when it is back."""
    under_test = options(own_broker.service_url, "stalled", send__timeout_ms="1000")

    def interrupted():
        for number, batch in enumerate(batches(40)):
            if number == 2:
                os.kill(own_broker.pid, signal.SIGSTOP)
            yield batch

    try:
        with pytest.raises(PulsarFailuresError, match=r"\[PULSAR_SINK_TIMEOUT\]"):
            send_batches(interrupted(), under_test, Task())
    finally:
        os.kill(own_broker.pid, signal.SIGCONT)

    assert 2000 == send_batches(batches(2), under_test, Task()).acked


def test_a_topic_that_is_unloaded_meanwhile(broker, admin, topic):
    """As happens whenever a cluster balances its load."""
    dead = f"{topic}-{SUBSCRIPTION}-DLQ"

    def interrupted():
        for number, batch in enumerate(batches(20)):
            if number == 10:
                admin.unload(dead)
            yield batch

    report = send_batches(interrupted(), options(broker.service_url, topic), Task())
    assert 20_000 == report.acked
    assert {b"%d" % row for row in range(20_000)} == set(payloads(stored(broker.service_url, dead)))


def test_a_topic_that_is_ended_meanwhile(broker, admin, topic):
    """What can't be written fails the task, though pulsar-client had taken it."""
    dead = f"{topic}-{SUBSCRIPTION}-DLQ"

    def interrupted():
        for number, batch in enumerate(batches(4)):
            if number == 2:
                admin.terminate(dead)
            yield batch

    with pytest.raises(PulsarFailuresError, match=r"TOPIC_TERMINATED|ALREADY_CLOSED"):
        send_batches(interrupted(), options(broker.service_url, topic), Task())


def test_delayed_rows_over_a_slow_broker(broker, topic):
    """As many are under way as may be, and each is waited for."""
    under_test = options(broker.service_url, topic, pending__max="1000", delay="3600")
    rows = [pa.record_batch({"payload": [b"%d" % n for n in range(5000)]})]
    report = send_batches(rows, under_test, Task())
    assert (5000, 5000) == (report.rows, report.acked)
    got = stored(broker.service_url, f"{topic}-{SUBSCRIPTION}-RETRY")
    assert {b"%d" % row for row in range(5000)} == set(payloads(got))

"""Brokers that restart, stall or refuse while rows are written: an error, or every row."""

from __future__ import annotations

import os
import signal
from collections import defaultdict

import pyarrow as pa
import pytest

from pulsar_retry.native.loading import Native
from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.sink import sender
from pulsar_retry_spark.sink.sender import Receipts
from pulsar_retry_spark.sink.sink import Task, send_batches
from support.reading import SUBSCRIPTION
from support.stored import payloads, stored

#: A busy machine takes long to restart a broker.
pytestmark = [pytest.mark.usefixtures("closed_clients"), pytest.mark.timeout(600)]


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


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_broker_that_goes_and_comes_again(own_broker, how):
    """No row is lost, and each is there with one id, however often it was sent.

    Mostly the task does not even notice. Where the broker takes longer than a receipt may, the task
    fails, and is run again, as Spark does.
    """

    def interrupted():
        for number, batch in enumerate(batches(40)):
            if number == 20:
                if how == "restart":
                    own_broker.restart()
                else:
                    own_broker.kill()
                    own_broker.start()
            yield batch

    # pulsar-client's waits between two tries to connect double, on a machine that may be busy.
    patient = options(own_broker.service_url, how, send__timeout_ms="90000")
    most_twice = patient.batching.pending
    try:
        report = send_batches(interrupted(), patient, Task())
    except PulsarFailuresError as error:
        if error.slug != "TIMEOUT":
            raise
        most_twice = 40_000
        report = send_batches(batches(40), patient, Task())

    assert 40_000 == report.rows
    ids = defaultdict(set)
    messages = stored(own_broker.service_url, f"{how}-{SUBSCRIPTION}-DLQ")
    for message in messages:
        ids[message.data()].add(message.properties()["DEDUPE_ID"])
    assert {b"%d" % row for row in range(40_000)} == set(ids)
    assert {1} == {len(each) for each in ids.values()}
    twice = len(messages) - len(ids)
    assert twice <= most_twice, "more are there twice than can have been under way"


def test_a_broker_that_stalls_is_an_error_and_no_hang(own_broker):
    """After as long as the user says; the next attempt goes through when it is back."""
    patient = options(own_broker.service_url, "stalled")
    hasty = options(own_broker.service_url, "stalled", send__timeout_ms="3000")
    assert 1000 == send_batches(batches(1), patient, Task()).rows  # the topic is there
    stalled = []

    def interrupted():
        for number, batch in enumerate(batches(40)):
            if number == 2:
                os.kill(own_broker.pid, signal.SIGSTOP)
                stalled.append(number)
            yield batch

    try:
        with pytest.raises(PulsarFailuresError, match=r"\[PULSAR_SINK_TIMEOUT\]"):
            send_batches(interrupted(), hasty, Task())
    finally:
        os.kill(own_broker.pid, signal.SIGCONT)
    assert stalled

    assert 2000 == send_batches(batches(2), patient, Task()).rows


def test_a_topic_that_is_unloaded_meanwhile(broker, admin, topic):
    """As happens whenever a cluster balances its load."""
    dead = f"{topic}-{SUBSCRIPTION}-DLQ"

    def interrupted():
        for number, batch in enumerate(batches(20)):
            if number == 10:
                admin.unload(dead)
            yield batch

    report = send_batches(interrupted(), options(broker.service_url, topic), Task())
    assert 20_000 == report.rows
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


@pytest.mark.parametrize("delay", ["0s", "1h"])
@pytest.mark.parametrize(("most_rows", "most_bytes"), [(100, 1 << 30), (20_000, 100_000)])
def test_more_rows_than_may_be_under_way(broker, topic, monkeypatch, delay, most_rows, most_bytes):
    """They wait for the receipts of others: neither many nor many bytes are on their way."""
    under_way = []

    class Watched(Receipts):
        @property
        def pending(self):
            return under_way[-1]

        @pending.setter
        def pending(self, rows):
            under_way.append(rows)

    monkeypatch.setattr(sender, "Receipts", Watched)
    monkeypatch.setattr(sender, "_MAX_PENDING_BYTES", most_bytes)
    monkeypatch.setattr(sender, "_AT_ONCE_BYTES", 20_000)
    limits = {"pending__max": str(most_rows), "batch__messages": "20", "batch__bytes": "10000"}
    under_test = options(broker.service_url, topic, **limits, delay__levels=delay)
    rows = [pa.record_batch({"payload": [b"%0400d" % n for n in range(2000)]})]
    report = send_batches(rows, under_test, Task())
    assert 2000 == report.rows
    assert 0 < max(under_way) <= min(most_rows, most_bytes // 400)
    got = stored(broker.service_url, f"{topic}-{SUBSCRIPTION}-RETRY")
    assert {b"%0400d" % row for row in range(2000)} == set(payloads(got))


@pytest.mark.parametrize("partitions", [0, 3])
def test_a_delay_above_the_namespaces_limit(broker, admin, namespace, topic, partitions):
    """It fails at once and says why; shorter ones are written, each once."""
    retry = f"{topic}-{SUBSCRIPTION}-RETRY"
    if partitions:
        admin.create_partitioned_topic(retry, partitions)
    limit = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 60_000}
    admin.set_namespace_policy(namespace, "delayedDelivery", limit)

    def rows(delay):
        rows = range(20)
        columns = {"payload": [b"%d" % row for row in rows], "delay_ms": [delay for _ in rows]}
        yield pa.record_batch(columns)

    wanted = options(broker.service_url, topic)
    report = send_batches(rows(50_000), wanted, Task())
    assert 20 == report.rows
    with pytest.raises(PulsarFailuresError, match=r"\[PULSAR_SINK_REFUSED\].*maxDeliveryDelay"):
        send_batches(rows(90_000), wanted, Task())
    names = [f"{retry}-partition-{number}" for number in range(partitions)] or [retry]
    assert 20 == sum(admin.backlog(name, SUBSCRIPTION) for name in names)


@pytest.mark.parametrize("way", ["C++", "Python"])
def test_delayed_rows_among_others(admin, broker, namespace, topic, monkeypatch, way):
    """All are stored where the broker drops duplicates: a producer's messages keep their order."""
    if way == "Python":
        monkeypatch.setattr(sender, "native_rows", lambda: Native(None, "a test"))
    admin.set_namespace_policy(namespace, "deduplication", value=True)
    payload = [b"%d" % row for row in range(100)]
    delays = pa.array([None if row % 10 else 60_000 for row in range(100)], pa.int64())
    batch = pa.record_batch({"payload": payload, "attempt": [0] * 100, "delay_ms": delays})
    report = send_batches([batch], options(broker.service_url, topic), Task())
    assert 100 == report.rows
    got = stored(broker.service_url, f"{topic}-{SUBSCRIPTION}-RETRY")
    assert set(payload) == set(payloads(got))

"""Brokers that restart or die while a stream reads."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor, wait

import attrs
import pulsar
import pytest
from pyspark.sql.datasource import InputPartition

import pulsar_retry as pr
from pulsar_retry_spark.source import reading
from support.spark.sourcing import Letters, Micro, numbers
from support.waiting import eventually

#: Seconds for a broker to come back and for Spark to notice.
PATIENCE = 240

#: Seconds for which it is away.
AWAY = 5

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def client(own_broker):
    """Give a client of the broker that is to fall."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(own_broker.service_url, operation_timeout_seconds=90, logger=quiet) as client:
        yield client


@pytest.fixture
def letters(own_broker, client):
    """Give the topics of the test's subscription."""
    topic = f"persistent://public/default/{uuid.uuid4().hex}"
    return Letters(own_broker.service_url, topic, client)


@pytest.fixture
def micro(letters):
    """Give a stream without Spark."""
    micro = Micro(letters.options)
    yield micro
    micro.kill()


@pytest.fixture
def fallen(own_broker):
    """Return a function that calls another while the broker is down, and returns its result.

    The broker comes back when the call has met its absence.
    """

    def fallen(call):
        own_broker.kill()
        with ThreadPoolExecutor(1) as threads:
            called = threads.submit(call)
            try:
                done, _ = wait([called], AWAY)
            finally:
                own_broker.start()
            result = called.result(PATIENCE)
            assert not done, "the broker was not even asked"
            return result

    return fallen


def test_planning_waits_for_the_broker(letters, micro, fallen):
    """A stream that has begun, as opposed to one that is told a wrong address."""
    letters.send(*numbers(2))
    assert numbers(2) == micro.run()
    assert micro.offset == fallen(micro.plan)
    letters.send(*numbers(2, 4))
    eventually(lambda: micro.run() == numbers(2, 4))


def test_a_task_that_starts_waits_for_the_broker(letters, fallen):
    """Its client gives up before the broker is back, and the task does not."""
    letters.send(*numbers(3))
    impatient = Micro(letters.options, client__operation_timeout_seconds="1")
    end = impatient.plan()
    rows = fallen(lambda: impatient.read(end))
    impatient.kill()
    assert numbers(3) == [row["payload"] for row in rows]


@pytest.mark.parametrize("certain", [True, False])
def test_a_task_that_reads_waits_for_the_broker(letters, fallen, monkeypatch, certain):
    """Each message is a row once, wherever the end is, and whether it is known."""
    monkeypatch.setattr(reading, "_UNCERTAIN_LOOKS", 4)  # less than it is away
    for start in range(0, 3_000, 500):  # no more than a producer takes at once
        letters.send_batch(*(each.rjust(10_000) for each in numbers(start, start + 500)))
    micro = Micro(letters.options, receive__queue="50")  # or it has nearly all before the fall
    (task,) = micro.reader.partitions({}, micro.plan())
    piece = attrs.evolve(task.value, certain=certain)
    batches = micro.reader.read(InputPartition(piece))
    rows = next(batches).num_rows
    assert rows < 3_000

    left = fallen(lambda: list(batches))
    micro.kill()

    read = [int(payload) for one in left for payload in one.column("payload").to_pylist()]
    assert list(range(rows, 3_000)) == read


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_a_stream_outlives_its_broker(own_broker, letters, query, end):
    """It goes on by itself, and each message is read once, before and after."""
    letters.send(*numbers(3))
    query.start()
    eventually(lambda: query.read() == numbers(3), PATIENCE)

    getattr(own_broker, end)()
    if end == "kill":
        own_broker.start()
    letters.send(*numbers(3, 6))

    eventually(lambda: len(query.read()) >= 6 or not query.running.isActive, PATIENCE)
    assert query.running.exception() is None
    assert numbers(6) == query.read()

"""What is written is kept until somebody reads it, also where the broker deletes unused topics."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pulsar
import pyarrow as pa
import pytest

from pulsar_retry.policy.dead_letter import KEEPING_SUBSCRIPTION
from pulsar_retry_spark import clients
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.sink.sink import Task, send_batches
from support.reading import SOON, SUBSCRIPTION, receive_all
from support.stored import payloads, stored

pytestmark = pytest.mark.usefixtures("closed_clients")


@pytest.fixture
def send(broker, topic):
    """Return a function that writes one row for each payload, as one task."""

    def send(*values, retryable=False, **more):
        given = {key.replace("__", "."): value for key, value in more.items()}
        base = {"service.url": broker.service_url, "topic": topic, "subscription": SUBSCRIPTION}
        rows = pa.record_batch({"payload": values, "retryable": [retryable] * len(values)})
        return send_batches([rows], SinkOptions.parse(base | given), Task())

    return send


def subscriptions(admin, topic):
    """Return the subscriptions of a topic."""
    return sorted(admin.stats(topic)["subscriptions"])


def test_rows_outlive_the_brokers_sweeps(admin, client, topic, swept, send):
    """Nobody had subscribed to anything: what was written is there for whoever comes later."""
    retry, dead = f"{topic}-{SUBSCRIPTION}-RETRY", f"{topic}-{SUBSCRIPTION}-DLQ"
    send(b"again", retryable=True)
    send(b"dead")
    clients.close_all()
    swept()

    assert [KEEPING_SUBSCRIPTION] == subscriptions(admin, dead)
    assert [SUBSCRIPTION] == subscriptions(admin, retry)
    consumer = client.subscribe(
        topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared, enable_retry=True
    )
    assert b"again" == consumer.receive(SOON).data()
    reader = client.subscribe(dead, KEEPING_SUBSCRIPTION, pulsar.ConsumerType.Shared)
    assert b"dead" == reader.receive(SOON).data()


def test_only_what_is_written_to_is_made(admin, namespace, topic, send):
    """A job without rows to be retried makes no retry topic."""
    send(b"dead")

    assert [f"{topic}-{SUBSCRIPTION}-DLQ"] == admin.topics(namespace)


def test_tasks_that_run_at_once_make_it_together(admin, client, topic, send):
    """Also on a partitioned topic, of which each partition is kept."""
    dead = f"{topic}-{SUBSCRIPTION}-DLQ"
    admin.create_partitioned_topic(dead, 3)

    with ThreadPoolExecutor(4) as tasks:
        reports = list(
            tasks.map(
                # Each with a client of its own, as each worker of Spark's has.
                lambda task: send(*[b"%d" % n for n in range(50)], client__io_threads=str(task)),
                range(1, 5),
            )
        )

    assert [50] * 4 == [report.rows for report in reports]
    for partition in range(3):
        assert [KEEPING_SUBSCRIPTION] == subscriptions(admin, f"{dead}-partition-{partition}")
    consumer = client.subscribe(dead, KEEPING_SUBSCRIPTION, pulsar.ConsumerType.Shared)
    assert 200 == len(receive_all(consumer, count=200))


def test_a_consumer_that_is_there_is_not_disturbed(admin, client, topic, send):
    """Of whatever type it is: what exists is not made again, and nothing is taken from it."""
    dead, retry = f"{topic}-{SUBSCRIPTION}-DLQ", f"{topic}-{SUBSCRIPTION}-RETRY"
    consumer = client.subscribe(dead, "mine", pulsar.ConsumerType.Exclusive)
    handler = client.subscribe(retry, SUBSCRIPTION, pulsar.ConsumerType.Shared)

    send(b"dead", initial_subscription_name="mine")
    send(b"again", retryable=True, delay__levels="0s")
    clients.close_all()
    send(b"again", retryable=True, delay__levels="0s")

    assert b"dead" == consumer.receive(SOON).data()
    assert [0, 0] == [handler.receive(SOON).redelivery_count() for _ in range(2)]
    assert ["mine"] == subscriptions(admin, dead)


@pytest.mark.parametrize("none", ["none", "NONE", " "])
def test_none_is_made_where_none_is_wanted(broker, admin, topic, send, none):
    """On neither topic: somebody else sees to it, or it is lost."""
    dead = f"{topic}-{SUBSCRIPTION}-DLQ"
    send(b"dead", initial_subscription_name=none)
    assert [] == subscriptions(admin, dead)
    assert {b"dead": 1} == payloads(stored(broker.service_url, dead))


@pytest.mark.parametrize("retryable", [True, False])
def test_rows_right_after_a_deletion(admin, topic, send, retryable):
    """The subscription was there in the task before, but not the topic: it is checked again."""
    written = f"{topic}-{SUBSCRIPTION}-{'RETRY' if retryable else 'DLQ'}"
    send(b"a", retryable=retryable)
    before = subscriptions(admin, written)
    admin.delete_topic(written)

    send(b"b", retryable=retryable)

    assert before == subscriptions(admin, written)

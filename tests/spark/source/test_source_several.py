"""One query over the letters of several subscriptions, since a time."""

from __future__ import annotations

import time

import pytest

from pulsar_retry import ConfigError
from pulsar_retry_spark.source.batch import schema
from pulsar_retry_spark.source.options import SourceOptions
from pulsar_retry_spark.source.source import FailureReader
from support.spark.sourcing import Micro, frame, payloads

pytestmark = pytest.mark.usefixtures("closed_clients")


@pytest.fixture
def several(letters, broker, namespace):
    """Give options for two dead-letter topics, one of them partitioned, and a retry topic."""
    letters.client.create_producer(f"persistent://{namespace}/other").close()
    for name in ("x-a-DLQ", "y-b-DLQ", "x-a-RETRY"):
        letters.send(name.encode(), to=f"persistent://{namespace}/{name}")
    return {"service.url": broker.service_url, "admin.url": broker.admin_url}


def names(namespace, *topics):
    """Return full names, separated as the option has them."""
    return ", ".join(f"persistent://{namespace}/{each}" for each in topics)


def test_topics_are_listed(spark, several, namespace):
    """Each row tells where it was read, and of which kind the topic is by its name."""
    listed = names(namespace, "x-a-DLQ", "y-b-DLQ", "x-a-RETRY")

    rows = frame(spark, several, topics=listed).collect()

    assert {
        (f"persistent://{namespace}/x-a-DLQ", "dead_letter", b"x-a-DLQ"),
        (f"persistent://{namespace}/y-b-DLQ", "dead_letter", b"y-b-DLQ"),
        (f"persistent://{namespace}/x-a-RETRY", "retry", b"x-a-RETRY"),
    } == {(row.topic, row.kind, bytes(row.payload)) for row in rows}
    assert [b"x-a-RETRY"] == payloads(frame(spark, several, topics=listed, kind="retry").collect())


def test_topics_match_a_pattern(spark, several, namespace, letters):
    """Also those that appear while a stream runs."""
    pattern = f"persistent://{namespace}/.*-DLQ"
    rows = frame(spark, several, topicsPattern=pattern).collect()
    assert {b"x-a-DLQ", b"y-b-DLQ"} == set(payloads(rows))

    micro = Micro(several, topicsPattern=pattern, discovery__seconds="0")
    try:
        assert {b"x-a-DLQ", b"y-b-DLQ"} == set(micro.run())
        letters.send(b"new", to=f"persistent://{namespace}/z-c-DLQ")
        assert [b"new"] == micro.run()
    finally:
        micro.kill()


@pytest.mark.parametrize("read", ["batch", "stream"])
def test_letters_since_a_time(spark, several, namespace, letters, read):
    """By their publish time; earlier ones are left out, and a restart reads none of them."""
    topic = f"persistent://{namespace}/x-a-DLQ"
    letters.send_batch(b"1", b"2", to=topic)
    time.sleep(0.05)
    since = str(round(time.time() * 1000))
    time.sleep(0.05)
    letters.send(b"3", to=topic)
    options = {"topics": names(namespace, "x-a-DLQ", "y-b-DLQ"), "startingTime": since}
    if read == "batch":
        assert [b"3"] == payloads(frame(spark, several, **options).collect())
        return
    micro = Micro(several, **options)
    try:
        assert [b"3"] == micro.run()
        letters.send(b"4", to=topic)
        assert [b"4"] == micro.run()
    finally:
        micro.kill()


@pytest.mark.parametrize("late", range(1, 8))
def test_letters_that_were_stored_late_are_not_passed_over(letters, client, late):
    """Published before the time, but stored after it, as after an outage of their producer."""
    producer = client.create_producer(
        letters.dead, batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    producer.send_async(b"early", None)
    letters.send(b"old")
    time.sleep(0.02)
    since = round(time.time() * 1000)
    time.sleep(0.02)
    letters.send(*[b"%d" % n for n in range(late)])
    producer.flush()
    letters.send(*[b"%d" % n for n in range(late, 8)])
    reader = FailureReader(letters.options | {"startingTime": str(since)}, schema())
    (task,) = reader.partitions()
    rows = [row for batch in reader.read(task) for row in batch.to_pylist()]
    assert [b"%d" % n for n in range(8)] == [row["payload"] for row in rows]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"dead_letter.topic": "a,b"}, "dead_letter.topic='a,b': expected one topic: topics takes"),
        ({"topic": "a,b", "subscription": "s"}, "topic='a,b': expected one topic: topics takes"),
        ({"topics": "a", "topic": "b", "subscription": "s"}, "topics.*expected no topic"),
        ({"topics": "a,a"}, "topics='a,a': expected different topics"),
        ({"topics": "a", "topicsPattern": "b/c/.*"}, "topicsPattern.*expected no topics"),
        ({"topicsPattern": "a/b/.*"}, "admin.url=None: expected the URL"),
        ({"topicsPattern": "a/b/(", "admin.url": "http://b:8080"}, "topicsPattern=.*expected"),
        *(
            ({"topicsPattern": each, "admin.url": "http://b:8080"}, "expected a tenant and a names")
            for each in ("a/.*", "a/.*/x-DLQ", "non-persistent://a/b/.*")
        ),
        ({"topics": "a-DLQ,b", "kind": "retry"}, "topics='a-DLQ,b': expected topics of kind retry"),
        (
            {"topics": "a", "startingTime": "yesterday"},
            "startingTime='yesterday': expected a whole",
        ),
        (
            {"topics": "a", "startingTime": "1", "starting": "latest"},
            "startingTime=1: expected none",
        ),
    ],
)
def test_wrong_options_are_named(change, text):
    """Together with those that they contradict."""
    with pytest.raises(ConfigError, match=text):
        SourceOptions.parse({"service.url": "pulsar://broker"} | change, streaming=True)

"""What can be watched, on a real broker: counts and hooks."""

from __future__ import annotations

from typing import Any

import prometheus_client
import pulsar
import pytest

import pulsar_retry as pr
from support.pull import workers
from support.pull.handling import fails
from support.reading import SOON, SUBSCRIPTION
from support.waiting import eventually


class Metrics:
    """Reads the metrics of the test's subscription."""

    def __init__(self, topic: str) -> None:
        self._labels = {"topic": topic, "subscription": SUBSCRIPTION}
        self._registry = pr.register_metrics(prometheus_client.CollectorRegistry())

    def __call__(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(f"pulsar_retry_{name}", self._labels | labels)


@pytest.fixture
def metrics(topic: str) -> Metrics:
    """Give a function that reads one."""
    return Metrics(topic)


@pytest.fixture
def told() -> list[tuple[str, pr.SettleEvent]]:
    """Give what hooks were told."""
    return []


@pytest.fixture
def hooks(told: list[tuple[str, pr.SettleEvent]]) -> pr.Hooks:
    """Give hooks that take notes."""
    return pr.Hooks(
        on_retry=lambda event: told.append(("retry", event)),
        on_dead_letter=lambda event: told.append(("dead letter", event)),
        on_settle_failed=lambda event: told.append(("failed", event)),
    )


def test_a_consumer_counts_what_becomes_of_messages(subscribe, publish, metrics):
    """Acknowledged, retried by letter and by nack, dead-lettered."""
    consumer = subscribe()
    for number in range(10):
        publish(b"%d" % number)
    for _ in range(7):
        consumer.acknowledge(consumer.receive(SOON))
    consumer.negative_acknowledge(consumer.receive(SOON), delay=0)
    consumer.reconsume_later(consumer.receive(SOON), delay=3600)
    consumer.dead_letter(consumer.receive(SOON), reason="invalid")
    consumer.acknowledge(consumer.receive(SOON))
    count = {
        outcome: metrics("deliveries_total", outcome=outcome)
        for outcome in ("acknowledged", "nacked", "retried", "dead_lettered")
    }
    assert {"acknowledged": 8, "nacked": 1, "retried": 1, "dead_lettered": 1} == count
    assert [1, 1] == [metrics("retries_total", kind=each) for each in ("nack", "letter")]
    assert 1 == metrics("dead_letters_total", reason="invalid")
    assert 0 == metrics("letters_inflight")


def test_hooks_are_told_after_the_receipt(subscribe, publish, hooks, told, admin, topic):
    """Of a letter that can be received, of a message that is acknowledged, and in this order."""
    consumer = subscribe(dead_letter_policy=pr.DeadLetterPolicy(1), hooks=hooks)
    sent = publish()
    consumer.reconsume_later(consumer.receive(SOON), delay=0)
    [(hook, event)] = told
    assert ("retry", topic, SUBSCRIPTION) == (hook, event.topic, event.subscription)
    assert (1, "letter", 0.0) == (event.attempt, event.kind, event.delay)
    assert f"{topic}-{SUBSCRIPTION}-RETRY" == event.letter_topic
    assert str(sent)[1:-1].replace(",", ":").startswith(event.message_id)
    consumer.reconsume_later(consumer.receive(SOON))
    assert ["retry", "dead letter"] == [hook for hook, _ in told]
    dead = told[1][1]
    assert (topic, 2, "retries-exhausted") == (dead.topic, dead.attempt, dead.reason)
    assert f"{topic}-{SUBSCRIPTION}-DLQ" == dead.letter_topic
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 0)


def test_a_failed_settlement(subscribe, publish, hooks, told, admin, topic, metrics):
    """The broker refuses the letter: the hook is told and the message comes back."""
    consumer = subscribe(hooks=hooks, letter_send_timeout=2)
    publish()
    message = consumer.receive(SOON)
    admin.terminate(f"{topic}-{SUBSCRIPTION}-RETRY")
    with pytest.raises(pr.LetterPublishError):
        consumer.reconsume_later(message)
    [(hook, event)] = told
    assert ("failed", pr.LetterPublishError) == (hook, type(event.error))
    assert 1 == metrics("settle_failures_total", error_type="LetterPublishError")
    assert 0 == metrics("retries_total", kind="letter")
    consumer.acknowledge(consumer.receive(SOON))


def test_dead_letters_that_wait_for_their_topic(subscribe, publish, admin, topic, metrics):
    """They are counted as long as their topic refuses them: a consumer has no health to ask."""
    dead = f"{topic}-{SUBSCRIPTION}-DLQ"
    admin.create_topic(dead)
    admin.terminate(dead)
    consumer = subscribe(enable_retry=False, dead_letter_policy=pr.DeadLetterPolicy(0))
    for _ in range(3):
        publish()
        consumer.negative_acknowledge(consumer.receive(SOON))
    eventually(lambda: metrics("letters_inflight") == 3)
    admin.delete_topic(dead)
    eventually(lambda: metrics("deliveries_total", outcome="dead_lettered") == 3)
    assert 0 == metrics("letters_inflight")


def test_a_subscriber(start, publish, hooks, told, metrics):
    """Its failures by letters and dead letters with the error; its gauges while it runs."""

    def handle(message: Any) -> None:
        if message.data() == b"drop":
            raise pr.Drop("unwanted")
        fails(message)

    policy = pr.RetryPolicy(max_attempts=2, backoff=pr.Immediate(), jitter="none")
    subscriber = start(handle, retry_policy=policy, hooks=hooks)
    publish(b"drop")
    publish(b"order")
    eventually(lambda: len(told) == 2)
    # The letter can fail before the hook of the attempt before it is called, on another thread.
    assert {("retry", 1), ("dead letter", 2)} == {(hook, event.attempt) for hook, event in told}
    assert {ValueError} <= {type(event.error) for _, event in told}
    eventually(lambda: metrics("deliveries_total", outcome="dropped") == 1)
    eventually(lambda: metrics("inflight") == 0)
    assert 0 == metrics("load_ratio")
    subscriber.stop()
    assert metrics("inflight") is None


def test_worker_processes_are_counted_by_their_parent(start, publish, metrics):
    """Attempts, letters and acknowledgements, as with threads."""
    policy = pr.RetryPolicy(max_attempts=2, backoff=pr.Immediate())
    start(workers.judge, workers="processes", concurrency=2, retry_policy=policy)
    for payload in (b"fine-1", b"fine-2", b"flaky-1", b"poison-1"):
        publish(payload)
    eventually(lambda: metrics("deliveries_total", outcome="dead_lettered") == 1)
    eventually(lambda: metrics("deliveries_total", outcome="acknowledged") == 3)
    assert 2 == metrics("deliveries_total", outcome="retried")
    assert 2 == metrics("retries_total", kind="letter")
    assert 1 == metrics("dead_letters_total", reason="retries-exhausted")
    eventually(lambda: metrics("inflight") == 0)


def test_a_lane_that_retries_in_place(start, publish, hooks, told, metrics):
    """It counts as a retry of its own kind."""
    done = []

    def handle(message: Any) -> None:
        done.append(message)
        if len(done) < 3:
            raise ValueError("not yet")

    policy = pr.RetryPolicy(max_attempts=9, backoff=pr.Immediate(), jitter="none")
    start(
        handle,
        retry_policy=policy,
        hooks=hooks,
        consumer_type=pulsar.ConsumerType.KeyShared,
    )
    publish(partition_key="customer")
    eventually(lambda: metrics("deliveries_total", outcome="acknowledged") == 1)
    assert 2 == metrics("retries_total", kind="lane")
    assert [("lane", 1), ("lane", 2)] == [(event.kind, event.attempt) for _, event in told]


def test_log_records_are_structured(start, publish, topic, caplog):
    """Where, which message, which attempt and why, as attributes; and nothing that it holds."""

    def handle(_message: Any) -> None:
        raise ValueError("no such customer")

    start(handle, retry_policy=pr.RetryPolicy(max_attempts=1))
    publish(b"the payload", properties={"token": "the token"})
    eventually(lambda: any("a message failed" in each.message for each in caplog.records))
    [record] = [each for each in caplog.records if "a message failed" in each.message]
    said = vars(record)
    assert (topic, SUBSCRIPTION, 1) == (said["topic"], said["subscription"], said["attempt"])
    assert "retries-exhausted" == said["reason"]
    assert said["message_id"]
    assert not [v for v in said.values() if "the payload" in str(v) or "the token" in str(v)]


@pytest.mark.parametrize("end", ["consumer", "client", "shutdown"])
def test_what_is_closed_shows_no_gauges(broker, topic, publish, metrics, end):
    """Its counters stay, for they never go back."""
    client = pr.Client(broker.service_url, operation_timeout_seconds=90)
    consumer = client.subscribe(topic, SUBSCRIPTION, pulsar.ConsumerType.Shared, enable_retry=True)
    publish()
    consumer.reconsume_later(consumer.receive(SOON), delay=3600)
    assert (0, 0) == (metrics("letters_inflight"), metrics("unsettled"))
    {"consumer": consumer.close, "client": client.close, "shutdown": client.shutdown}[end]()
    assert (None, None) == (metrics("letters_inflight"), metrics("unsettled"))
    assert 1 == metrics("retries_total", kind="letter")
    if end != "client":
        client.close()

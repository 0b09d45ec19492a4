"""The due backlog of subscriptions, against what the test itself knows of its letters."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families

import pulsar_retry as pr
from pulsar_retry.admin.client import AdminClient
from pulsar_retry.ops.due import DueBacklog, due_backlogs
from support.reading import FROM_START, SOON, SUBSCRIPTION, eventually

#: Seconds that letters are delayed, or for ever as far as tests go.
SHORT, LONG = 8.0, 3600.0


@pytest.fixture
def due(rest: AdminClient, namespace: str) -> Callable[..., DueBacklog]:
    """Return a function that gives what is due for the test's subscription."""

    def due(part: str = "retry", subscription: str = SUBSCRIPTION) -> DueBacklog:
        found = due_backlogs(rest, namespace)
        (one,) = (each for each in found if (each.subscription, each.part) == (subscription, part))
        return one

    return due


def delay_all(consumer: pr.Consumer, count: int, delay: float) -> list[tuple[float, float]]:
    """Send *count* messages to the retry topic; return when each is due: not before, not after."""
    futures, times = [], []
    for _ in range(count):
        message = consumer.receive(SOON)
        began = time.time()
        futures.append(consumer.reconsume_later_async(message, delay=delay))
        times.append((began + delay, time.time() + delay))
    for future in futures:
        future.result(60)
    return times


def test_letters_of_equal_delay(request, subscribe, client, topic, due):
    """Right within 1 %, before, while and after they become due; --due-letters 60000."""
    count = int(request.config.getoption("due_letters", 3000))
    delay = 60.0 if count > 10_000 else SHORT
    consumer = subscribe(dead_letter_policy=pr.DeadLetterPolicy(100))
    producer = client.create_producer(topic, block_if_queue_full=True)
    for number in range(count):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    times = delay_all(consumer, count, delay)
    finished = time.time() + delay
    checks = 0
    while True:
        began = time.time()
        found = due()
        ended = time.time()
        # A letter gets its delay a moment after `reconsume_later_async` was called.
        least = sum(latest <= began - 1 for _, latest in times)
        most = sum(earliest <= ended for earliest, _ in times)
        assert count == found.backlog
        assert least - count / 100 <= found.due <= most + count / 100
        assert 0 == found.error
        checks += 1
        if began > finished + 1 and checks > 2:
            break
    assert count == found.due
    assert 0 == found.not_due


def test_mixed_delays(client, topic, due):
    """It says by how much it may be wrong, and is not."""
    client.subscribe(topic, SUBSCRIPTION, **FROM_START).close()
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for number in range(1200):
        delay = timedelta(seconds=LONG) if number % 3 else None
        producer.send_async(b"%d" % number, lambda *_: None, deliver_after=delay)
    producer.flush()
    found = due("main")
    assert 1200 == found.backlog
    assert 0 < found.error < 120
    assert abs(found.due - 400) <= 2 * found.error  # 95 % are within one


def test_the_topic_itself_and_what_was_acknowledged(client, topic, due):
    """Producers delay messages, too; acknowledged ones are not counted, nor are gaps looked at."""
    consumer = client.subscribe(topic, SUBSCRIPTION, **FROM_START)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(40):
        delay = timedelta(seconds=LONG) if number % 4 == 3 else None
        producer.send(b"%d" % number, deliver_after=delay)
    held = [consumer.receive(SOON) for _ in range(30)]
    for message in held[10:25]:
        consumer.acknowledge(message)
    eventually(lambda: due("main").backlog == 25)
    assert (15, 10, 0) == (due("main").due, due("main").not_due, due("main").error)


def test_all_partitions(rest, client, topic, due):
    """The numbers of a partitioned topic are those of its partitions together."""
    rest.topics.create(topic, partitions=3)
    consumer = client.subscribe(topic, SUBSCRIPTION, **FROM_START)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(30):
        delay = timedelta(seconds=LONG) if number % 2 else None
        producer.send(b"%d" % number, deliver_after=delay, partition_key=str(number))
    assert (30, 15) == (due("main").backlog, due("main").due)
    consumer.close()
    assert (30, 15) == (due("main").backlog, due("main").due)


def test_a_subscription_without_delays(client, topic, due):
    """An Exclusive one gets delayed messages at once, so they are due."""
    consumer = client.subscribe(topic, SUBSCRIPTION, pulsar.ConsumerType.Exclusive)
    client.create_producer(topic).send(b"order", deliver_after=timedelta(seconds=LONG))
    consumer.receive(SOON)
    assert (1, 1) == (due("main").backlog, due("main").due)


def test_the_command_prints_it(subscribe, publish, admin, topic, namespace, run, run_json):
    """For Prometheus, and as JSON; not with --no-due."""
    consumer = subscribe(dead_letter_policy=pr.DeadLetterPolicy(100))
    for _ in range(3):
        publish()
    delay_all(consumer, 2, LONG)
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 1)  # acknowledgements are under way
    code, output, _ = run("metrics", namespace, "--once")
    values = {
        (sample.name.removeprefix("pulsar_retry_"), sample.labels.get("part")): sample.value
        for family in text_string_to_metric_families(output)
        for sample in family.samples
        if sample.labels.get("topic", topic) == topic
    }
    assert 0 == code
    assert 1 == values["due_backlog", "main"]
    assert (2, 2, 0) == (
        values["backlog", "retry"],
        values["not_due_backlog", "retry"],
        values["due_backlog", "retry"],
    )
    assert 1 == values["due_exporter_up", None]
    facts = [each for each in run_json("metrics", namespace, "--once") if each["kind"] == "due"]
    assert {("main", 1), ("retry", 0)} == {(each["part"], each["due"]) for each in facts}
    code, output, _ = run("metrics", namespace, "--once", "--no-due")
    assert 0 == code
    assert "due_backlog" not in output


def test_dead_letters_are_not_work(subscribe, publish, rest, namespace):
    """A worker does not handle them, so nothing scales by them."""
    consumer = subscribe(dead_letter_policy=pr.DeadLetterPolicy(1, initial_subscription_name="x"))
    publish()
    consumer.dead_letter(consumer.receive(SOON), reason="invalid")
    assert {SUBSCRIPTION} == {each.subscription for each in due_backlogs(rest, namespace)}

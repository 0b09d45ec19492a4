"""Ordered subscriptions: lanes on a real broker."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import attrs
import pulsar
import pytest

import pulsar_retry as pr
from support.pull import workers
from support.pull.handling import Notes, fails
from support.pull.ordered import Crowd
from support.pull.ordered import publish as publish_load
from support.reading import SUBSCRIPTION
from support.waiting import eventually

KEY_SHARED = pulsar.ConsumerType.KeyShared
KEYS = ("a", "b", "c", "d")


@pytest.fixture
def publish_keyed(publish: Callable[..., Any]) -> Callable[[int], None]:
    """Return a function that publishes so many messages of each key, ``a0``, ``b0``, …, ``a1``."""

    def publish_keyed(count: int) -> None:
        for number in range(count):
            for key in KEYS:
                publish(f"{key}{number}".encode(), partition_key=key)

    return publish_keyed


def test_order_is_kept_through_retries(start, publish_keyed):
    """Each key's messages are handled in their order, one at a time, also those that fail."""
    running: dict[str, int] = defaultdict(int)
    order: dict[str, list[int]] = defaultdict(list)
    failed: set[bytes] = set()
    lock = threading.Lock()

    def handle(message: Any) -> None:
        key, number = message.data()[:1].decode(), int(message.data()[1:])
        with lock:
            running[key] += 1
            assert running[key] == 1, "two messages of a key at a time"
        try:
            if number % 5 == 0 and message.data() not in failed:
                failed.add(message.data())
                raise TimeoutError
            order[key].append(number)
        finally:
            with lock:
                running[key] -= 1

    notes = Notes(handle)
    publish_keyed(30)
    policy = pr.RetryPolicy(backoff=pr.Fixed(0.05))
    subscriber = start(notes, consumer_type=KEY_SHARED, retry_policy=policy)
    notes.wait_for(4 * 30 + 4 * 6)
    report = subscriber.stop()
    assert {key: list(range(30)) for key in KEYS} == order
    assert (120, 24, 0) == (report.acknowledged, report.retried, report.dead_lettered)


@pytest.mark.parametrize("form", ["def", "async", "processes"])
@pytest.mark.parametrize("kind", [KEY_SHARED, pulsar.ConsumerType.Failover])
def test_a_handler_knows_the_attempt_in_a_lane(start, publish, dead_letters, kind, form):
    """As elsewhere, although no letter and no redelivery tells it."""

    async def say_later(message: Any) -> None:
        workers.say_attempt(message)

    options = {"workers": "processes"} if form == "processes" else {}
    policy = pr.RetryPolicy(max_attempts=3, backoff=pr.Fixed(0.05))
    handler = say_later if form == "async" else workers.say_attempt
    start(handler, consumer_type=kind, retry_policy=policy, **options)
    publish(partition_key="k")
    (dead,) = dead_letters(1)
    assert "attempt 3" == pr.DeadLetter.of(dead).failure.message


@pytest.mark.parametrize("redelivery", ["letters", "nack"])
@pytest.mark.parametrize(
    "form",
    [
        pytest.param({}, id="plain"),
        pytest.param(
            {
                "batching_enabled": True,
                "batching_type": pulsar.BatchingType.KeyBased,
                "batching_max_publish_delay_ms": 200,
            },
            id="batched",
        ),
        pytest.param({"batching_enabled": False, "chunking_enabled": True}, id="chunked"),
    ],
)
def test_a_blocked_key_stops_no_other(client, topic, start, form, redelivery):
    """More of it wait than flow control lets in, and are handled in order when it works again."""
    works = threading.Event()

    def handle(message: Any) -> None:
        if message.data().startswith(b"a") and not works.is_set():
            raise TimeoutError

    filling = b" " * (6 << 20 if "chunking_enabled" in form else 0)
    count = 8 if filling else 40
    notes = Notes(handle)
    subscriber = start(
        notes,
        consumer_type=KEY_SHARED,
        redelivery=redelivery,
        flow_control=pr.FlowControl(max_messages=count // 2),
        retry_policy=pr.RetryPolicy(max_attempts=1000, backoff=pr.Fixed(0.2)),
    )
    producer = client.create_producer(topic, **form)
    for number in range(count):
        producer.send_async(b"a%d" % number + filling, lambda *_: None, partition_key="a")
    producer.flush()
    notes.wait_for(1)
    for number in range(count):
        producer.send_async(b"b%d" % number, lambda *_: None, partition_key="b")
    producer.flush()

    def handled(key: bytes) -> list[int]:
        seen = [int(each[1:]) for each in notes.seen if each.startswith(key)]
        return sorted(set(seen), key=seen.index)

    eventually(lambda: handled(b"b") == list(range(count)))
    assert [0] == handled(b"a")
    eventually(lambda: subscriber.in_hand[0] == count)
    works.set()
    eventually(lambda: handled(b"a") == list(range(count)))
    eventually(lambda: subscriber.in_hand == (0, 0))
    if "batching_type" not in form:  # without batch index acknowledgements a batch comes as a whole
        assert 2 * count == len(notes.seen) - notes.attempts[b"a0" + filling] + 1


def test_a_blocked_key_beside_a_lost_partition(client, namespace, admin, start):
    """What waits in a lane comes again, although another partition's connection was lost."""
    topic = f"persistent://{namespace}/orders"
    admin.create_partitioned_topic(topic, 2)
    works = threading.Event()
    notes = Notes(lambda message: None if works.is_set() else fails(message))
    subscriber = start(
        notes,
        topic,
        consumer_type=KEY_SHARED,
        lanes=pr.Lanes(max_parked=2),
        retry_policy=pr.RetryPolicy(max_attempts=1000, backoff=pr.Fixed(0.2)),
    )
    producer = client.create_producer(topic, batching_enabled=False)
    places = [producer.send(b"%d" % number, partition_key="a") for number in range(10)]
    notes.wait_for(3)
    other = f"{topic}-partition-{1 - places[0].partition()}"
    for _ in range(3):  # a connection that is back at once may not be missed
        admin.unload(other)
        eventually(lambda: admin.stats(other)["subscriptions"][SUBSCRIPTION]["consumers"])
    works.set()
    eventually(lambda: len(set(notes.seen)) == 10)
    eventually(lambda: subscriber.in_hand == (0, 0))


@pytest.mark.parametrize("kind", [KEY_SHARED, pulsar.ConsumerType.Failover], ids=str)
def test_order_is_kept_while_a_partition_is_unloaded(client, namespace, admin, start, kind):
    """Messages of the other partitions, in hand and in pulsar-client's queue, stay in order."""
    topic = f"persistent://{namespace}/orders"
    admin.create_partitioned_topic(topic, 3)
    lock = threading.Lock()
    order: dict[str, list[int]] = defaultdict(list)

    def handle(message: Any) -> None:
        time.sleep(0.002)
        key, number = message.data().decode().split()
        with lock:
            if int(number) not in order[key]:
                order[key].append(int(number))

    subscriber = start(
        handle,
        topic,
        consumer_type=kind,
        flow_control=pr.FlowControl(max_messages=100, prefetch=200),
    )
    producer = client.create_producer(topic, block_if_queue_full=True, send_timeout_millis=0)
    for number in range(100):
        for key in range(20):
            text = f"{key} {number}"
            producer.send_async(text.encode(), lambda *_: None, partition_key=str(key))
        if number % 20 == 10:
            admin.unload(f"{topic}-partition-1")
    eventually(lambda: sum(map(len, order.values())) == 2000)
    assert {str(key): list(range(100)) for key in range(20)} == order
    eventually(lambda: subscriber.in_hand == (0, 0))


@pytest.mark.parametrize("kind", [KEY_SHARED, pulsar.ConsumerType.Failover], ids=str)
def test_nothing_overtakes_what_comes_again(proxy, client, admin, topic, kind):
    """The rest of a lost connection is still there when pulsar-client says that it is back."""
    client.subscribe(topic, SUBSCRIPTION, kind).close()
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(50):
        producer.send_async(b"%d" % number, lambda *_: None, partition_key="k")
    producer.flush()
    goes_on = threading.Event()
    notes = Notes(lambda _: goes_on.wait(60))
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(proxy.url, operation_timeout_seconds=90, logger=quiet) as remote:
        subscriber = remote.subscriber(
            topic,
            SUBSCRIPTION,
            notes,
            consumer_type=kind,
            flow_control=pr.FlowControl(max_messages=5, prefetch=1000),
        )
        subscriber.start()
        notes.wait_for(1)

        def fetched():
            return admin.stats(topic)["subscriptions"][SUBSCRIPTION]["msgOutCounter"]

        eventually(lambda: fetched() >= 50)
        proxy.cut(refuse=True)
        eventually(lambda: not subscriber._consumer.is_connected())
        goes_on.set()
        eventually(lambda: subscriber.in_hand == (0, 0))
        proxy.mend()
        proxy.delay = 0.5  # seconds from the request to subscribe to its answer
        eventually(lambda: len(set(notes.seen)) == 50, 60)
        subscriber.stop()
    numbers = [int(payload) for payload in notes.seen]
    assert list(range(50)) == sorted(set(numbers), key=numbers.index)


def test_messages_without_a_key_have_no_order(start, publish, dead_letters):
    """They are retried by letters, as on a Shared subscription."""
    notes = Notes(fails)
    start(notes, consumer_type=KEY_SHARED)
    publish(b"loose")
    (dead,) = dead_letters(1)
    assert (b"loose", 3) == (dead.data(), len(notes.seen))


def test_another_process_goes_on(start, publish):
    """What is parked when a subscriber ends comes to the next one in order; its count is new."""
    stuck = Notes(fails)
    after = Notes(lambda message: fails(message) if message.data() == b"0" else None)
    policy = pr.RetryPolicy(max_attempts=1000, backoff=pr.Fixed(0.1))
    for number in range(3):
        publish(b"%d" % number, partition_key="k")
    first = start(stuck, consumer_type=KEY_SHARED, retry_policy=policy)
    eventually(lambda: stuck.attempts.get(b"0", 0) >= 3)
    start(after, consumer_type=KEY_SHARED, retry_policy=attrs.evolve(policy, max_attempts=3))
    publish(b"3", partition_key="k")
    first.stop("hand_back")
    eventually(lambda: len(after.seen) == 6)
    assert [b"0", b"0", b"0", b"1", b"2", b"3"] == after.seen
    assert {b"0"} == set(stuck.seen)


def test_faults_invert_nothing(broker, client, topic, tmp_path, admin):
    """Processes are killed, join and leave, and a partition is unloaded, while keys fail."""
    messages, keys = 6_000, 100
    admin.create_partitioned_topic(topic, 3)

    def unload() -> None:
        admin.unload(f"{topic}-partition-1")  # one connection alone

    crowd = Crowd(broker.service_url, topic, tmp_path)
    faults = itertools.cycle([crowd.kill, unload, crowd.leave])
    client.subscribe(topic, SUBSCRIPTION, KEY_SHARED).close()  # from now on it keeps messages
    try:
        crowd.join()
        crowd.join()
        load = threading.Thread(target=publish_load, args=(client, topic, messages, keys, 500))
        load.start()
        for at in range(1, 6):
            eventually(lambda at=at: len(crowd.successes()) >= at * 900)
            if not crowd.is_at_work(messages):
                break
            next(faults)()
        load.join()
        eventually(lambda: len(crowd.successes()) >= messages)
    finally:
        crowd.end()
    assert {key for key, _ in crowd.successes()} == {f"key-{number}" for number in range(keys)}
    assert not crowd.inversions()
    assert not all(one.is_success for one in crowd.handled())

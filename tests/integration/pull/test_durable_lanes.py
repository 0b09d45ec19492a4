"""Durable ordered lanes on a real broker; docs/durable-lanes.md."""

from __future__ import annotations

import contextlib
import threading
import urllib.error
import uuid
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.model.lanes import check_lanes, keep
from support.pull.durable import SUBSCRIPTION, Book, Crowd, key_of, publish
from support.pull.handling import SOON
from support.reading import eventually

MESSAGES, KEYS, EVERY = 6_000, 100, 20


class Handler:
    """Notes what is handled, and fails where it is told to."""

    def __init__(self) -> None:
        """Make one that does not fail."""
        self.fails: set[tuple[str, str]] = set()
        self.attempts: dict[tuple[str, str], int] = defaultdict(int)
        self.order: dict[str, list[str]] = defaultdict(list)
        self.before: Callable[[str, str, int], object] = lambda *_: None
        self._lock = threading.Lock()

    def __call__(self, message: Any) -> None:
        key, text = message.partition_key(), message.data().decode()
        with self._lock:
            self.attempts[key, text] += 1
            attempt = self.attempts[key, text]
        self.before(key, text, attempt)
        with self._lock:
            if (key, text) in self.fails:
                raise TimeoutError("no answer")
            self.order[key].append(text)


@pytest.fixture
def handler() -> Handler:
    """Return a handler."""
    return Handler()


@pytest.fixture
def start(client, topic, handler):
    """Return a function that starts a subscriber; all are stopped at the end."""
    started = []

    def start(**options: Any) -> pr.Subscriber:
        options.setdefault("retry_policy", pr.RetryPolicy(max_attempts=3, backoff=pr.Fixed(0.5)))
        subscriber = client.subscriber(topic, SUBSCRIPTION, handler, ordering="durable", **options)
        started.append(subscriber)
        return subscriber.start()

    yield start
    for subscriber in started:
        subscriber.stop(timeout=60)


@pytest.fixture
def send(client, topic):
    """Return a function that publishes messages of a key."""
    producer = client.create_producer(topic)

    def send(key: str, *texts: str) -> None:
        for text in texts:
            producer.send(text.encode(), partition_key=key)

    return send


def test_successors_wait_and_others_flow(start, send, handler, client, topic):
    """The key's messages come in order, and its dead head in the dead-letter topic."""
    looked = threading.Event()

    def last(key: str, _text: str, attempt: int) -> None:
        """Let the head die when the others have been looked at."""
        assert (key, attempt) != ("bad", 3) or looked.wait(SOON)

    handler.fails, handler.before = {("bad", "0")}, last
    send("bad", "0", "1", "2")
    send("good", "0", "1", "2")
    subscriber = start()
    eventually(lambda: len(handler.order["good"]) == 3)
    assert not handler.order["bad"]
    looked.set()
    eventually(lambda: len(handler.order["bad"]) == 2)
    assert handler.order == {"good": ["0", "1", "2"], "bad": ["1", "2"]}
    assert handler.attempts["bad", "0"] == 3
    send("bad", "3")
    eventually(lambda: len(handler.order["bad"]) == 3)
    report = subscriber.stop()
    assert (report.acknowledged, report.dead_lettered) == (6, 1)
    reader = client.create_reader(f"{topic}-{SUBSCRIPTION}-DLQ", pulsar.MessageId.earliest)
    letter = reader.read_next(30_000)
    assert pr.DeadLetter.of(letter).failure.reason == "retries-exhausted"
    assert pr.RetryProperties.of(letter).real_topic == topic
    assert pr.RetryProperties.of(letter).reconsume_times == 3
    assert "LANE_ENTRY" not in letter.properties()


def test_another_process_goes_on(start, send, handler):
    """What is held when a subscriber ends is held in the next one, with its attempts."""
    handler.fails = {("a", "0")}
    policy = pr.RetryPolicy(max_attempts=1000, backoff=pr.Fixed(1))
    first = start(retry_policy=policy)
    send("a", "0", "1")
    eventually(lambda: handler.attempts["a", "0"] >= 2)
    first.stop("abandon")
    before = handler.attempts["a", "0"]
    send("a", "2")
    send("b", "0")
    second = start(retry_policy=pr.RetryPolicy(max_attempts=before + 2, backoff=pr.Fixed(1)))
    eventually(lambda: handler.order["b"])
    eventually(lambda: len(handler.order["a"]) == 2)
    assert handler.order["a"] == ["1", "2"]
    # The last attempt of the first one may not have been counted, since nobody waited for it.
    assert before + 1 <= handler.attempts["a", "0"] <= before + 3
    assert second.health.state == "running"


def test_an_operator_releases_a_parked_key(start, send, handler, run, run_json, topic):
    """With `on_exhausted="park"` nobody but an operator dead-letters, or tries again."""
    handler.fails = {("a", "0"), ("b", "0")}
    start(on_exhausted="park", retry_policy=pr.RetryPolicy(max_attempts=2, backoff=pr.Fixed(0.5)))
    send("a", "0", "1")
    send("b", "0", "1")

    def parked() -> list[str]:
        held = run_json("lanes", "ls", topic, SUBSCRIPTION)
        return sorted(each["key"] for each in held if each["waits_for_operator"])

    eventually(lambda: parked() == ["a", "b"])
    assert [each["attempts"] for each in run_json("lanes", "ls", topic, SUBSCRIPTION)] == [*(2, 2)]
    assert len(run_json("lanes", "show", topic, SUBSCRIPTION, "a")) == 2
    assert run_json("lanes", "compact", topic, SUBSCRIPTION)["compacted"]
    assert parked() == ["a", "b"]
    handler.fails = set()
    assert run_json("lanes", "release", topic, SUBSCRIPTION, "a", "--yes")["done"]
    assert run_json("lanes", "release", topic, SUBSCRIPTION, "b", "--retry", "--yes")["done"]
    eventually(lambda: handler.order == {"a": ["1"], "b": ["0", "1"]})
    eventually(lambda: run_json("lanes", "ls", topic, SUBSCRIPTION) == [])


def test_a_redrive_keeps_the_order(start, send, handler, run_json, topic, namespace):
    """Dead letters that are redriven to the stream are handled in their order, by key."""
    texts = [str(number) for number in range(20)]
    handler.fails = {(key, text) for key in "ab" for text in texts}
    start(retry_policy=pr.RetryPolicy(max_attempts=1))
    for text in texts:
        send("a", text)
        send("b", text)
    eventually(lambda: sum(handler.attempts.values()) == 40)
    dlq, stream = f"{topic}-{SUBSCRIPTION}-DLQ", f"{topic}-{SUBSCRIPTION}-LANES"
    eventually(lambda: run_json("dlq", "ls", namespace)[0]["backlog"] == 40)
    handler.fails = {("a", "3")}
    assert run_json("redrive", dlq, "--to", stream, "--yes")["redriven"] == 40
    eventually(lambda: len(handler.order["b"]) == 20 and len(handler.order["a"]) == 19)
    assert handler.order == {"a": [text for text in texts if text != "3"], "b": texts}


def test_faults_invert_nothing(broker, client, topic, tmp_path, admin):
    """Processes are killed, join and leave, and topics are unloaded, while keys fail.

    What happens to these keys is a behaviour of the model.
    """
    admin.create_partitioned_topic(topic, 3)
    facts = (0, 14, EVERY)

    def unload(name: str) -> None:
        admin.unload(f"{name}-partition-1" if name == topic else name)  # one connection alone

    crowd = Crowd(broker.service_url, topic, Path(tmp_path), facts, unload)
    book, faults = Book(Path(tmp_path)), crowd.faults()
    keep(client, topic, SUBSCRIPTION)
    try:
        crowd.join()
        crowd.join()
        load = threading.Thread(target=publish, args=(client, topic, MESSAGES, KEYS, 500))
        load.start()
        for at in range(1, 6):
            eventually(lambda at=at: book.look() >= at * 900)
            if not crowd.is_at_work(book, MESSAGES):
                break
            next(faults)()
        load.join()
        eventually(lambda: book.look() >= MESSAGES)
    finally:
        crowd.end()
    assert {key for key, _ in book.successes} == {key_of(number) for number in range(KEYS)}
    assert not book.inversions()
    assert book.diverted > 0
    check_lanes(client, topic, SUBSCRIPTION, book, MESSAGES // KEYS, Path(tmp_path))


def test_a_broken_connection_is_no_attempt(start, send, handler, admin, topic):
    """What the log has counted is not counted again when the message is delivered again."""
    handler.fails = {("a", "0")}
    start(retry_policy=pr.RetryPolicy(max_attempts=8, backoff=pr.Fixed(0.5)))
    send("a", "0", "1")
    for attempts in (3, 5):
        eventually(lambda: handler.attempts["a", "0"] >= attempts)  # noqa: B023 - it is awaited
        admin.unload(f"{topic}-{SUBSCRIPTION}-LANES")
    eventually(lambda: handler.order["a"])
    assert handler.attempts["a", "0"] >= 8


def test_a_refused_stream_refuses_the_start(client, start, topic):
    """The caller gets the error of the stream's subscription, as of the topic's."""
    client.subscribe(f"{topic}-{SUBSCRIPTION}-LANES", SUBSCRIPTION)  # Exclusive
    with pytest.raises(pulsar.ConsumerBusy):
        start()


def test_a_stop_without_a_broker_leaves_no_thread(own_broker, handler):
    """A thread that still waits in pulsar-client would abort a process that ends now."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    before = set(threading.enumerate())
    with pr.Client(own_broker.service_url, operation_timeout_seconds=90, logger=quiet) as client:
        own = uuid.uuid4().hex
        subscriber = client.subscriber(own, SUBSCRIPTION, handler, ordering="durable").start()
        client.create_producer(own).send(b"0", partition_key="a")
        eventually(lambda: handler.order["a"])
        own_broker.kill()
        eventually(lambda: subscriber.health.state == "degraded")
        subscriber.stop(timeout=5)
        names = {each.name for each in set(threading.enumerate()) - before}
        assert "pulsar-retry-lanes" not in names
    own_broker.start()


def test_a_terminated_log_ends_the_subscription(start, send, handler, admin, topic):
    """No claim can be stored any more. What was handled is not handled again until then."""
    subscriber = start()
    send("good", "0")
    eventually(lambda: handler.order["good"] and admin.backlog(topic, SUBSCRIPTION) == 0)
    admin.terminate(f"{topic}-{SUBSCRIPTION}-LANES-LOG")
    with pytest.raises(pulsar.TopicTerminated) as caught:
        subscriber.result(timeout=SOON)
    assert any("LANES-LOG" in note for note in caught.value.__notes__)
    assert subscriber.health.state == "failed"
    assert handler.attempts["good", "0"] == 1


def test_a_terminated_stream_holds_the_key(start, send, handler, admin, topic, caplog):
    """What is in it is handled; what cannot get there waits until the topic is made anew."""
    handler.fails = {("a", "0")}
    subscriber = start(retry_policy=pr.RetryPolicy(max_attempts=1000, backoff=pr.Fixed(0.5)))
    send("a", "0")
    eventually(lambda: handler.attempts["a", "0"] >= 2)
    stream = f"{topic}-{SUBSCRIPTION}-LANES"
    admin.terminate(stream)
    send("a", "1")
    send("b", "0")
    eventually(lambda: handler.order["b"] and subscriber.health.state == "degraded")
    eventually(
        lambda: any(each.levelname == "ERROR" and stream in each.message for each in caplog.records)
    )
    handler.fails = set()
    eventually(lambda: handler.order["a"] == ["0"])
    eventually(lambda: admin.backlog(stream, SUBSCRIPTION) == 0)
    admin.delete_topic(stream)
    eventually(lambda: handler.order["a"] == ["0", "1"])
    assert handler.attempts["a", "1"] == 1


def test_a_deleted_log_is_written_again(start, send, handler, admin, topic, caplog):
    """Every process knows what was in it, so that the next ones find it there."""
    handler.fails = {("a", "0")}
    start(retry_policy=pr.RetryPolicy(max_attempts=1000, backoff=pr.Fixed(0.5)))
    send("a", "0", "1")
    eventually(lambda: handler.attempts["a", "0"] >= 2)
    log = f"{topic}-{SUBSCRIPTION}-LANES-LOG"
    admin.delete_topic(log)
    eventually(lambda: any("written again" in each.message for each in caplog.records))
    eventually(lambda: admin.backlog(log, "pulsar-retry") > 0)
    other = start(retry_policy=pr.RetryPolicy(max_attempts=1000, backoff=pr.Fixed(0.5)))
    assert len(other._claim_log.view) == 1
    send("a", "2")
    handler.fails = set()
    eventually(lambda: len(handler.order["a"]) == 3)
    assert handler.order["a"] == ["0", "1", "2"]


def test_what_a_deleted_stream_had_is_said(start, send, handler, admin, topic, caplog):
    """The error names the key and the message that had failed. The key goes on behind it."""
    handler.fails = {("a", "0")}
    start(retry_policy=pr.RetryPolicy(max_attempts=1000, backoff=pr.Fixed(0.5)))
    send("a", "0", "1")
    eventually(lambda: handler.attempts["a", "0"] >= 2)
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 0)  # both are in the stream
    admin.delete_topic(f"{topic}-{SUBSCRIPTION}-LANES")
    send("a", "2")
    eventually(lambda: handler.order["a"] == ["2"])
    lost = [each.message for each in caplog.records if "is not in the stream" in each.message]
    assert len(lost) == 1
    assert "'a'" in lost[0]
    handler.fails = set()
    send("a", "3")
    eventually(lambda: handler.order["a"] == ["2", "3"])


def test_a_log_that_is_deleted_while_no_key_is_held(start, send, handler, admin, topic):
    """It keeps the claims of keys that are held later, though its reader is connected again."""
    start(retry_policy=pr.RetryPolicy(max_attempts=1000, backoff=pr.Fixed(0.5)))
    send("b", "0")
    eventually(lambda: handler.order["b"] == ["0"])
    log = f"{topic}-{SUBSCRIPTION}-LANES-LOG"
    admin.delete_topic(log)

    def is_connected_again() -> bool:
        with contextlib.suppress(urllib.error.HTTPError):
            stats = admin.stats(log)
            return bool(stats["publishers"] and stats["subscriptions"])
        return False

    eventually(is_connected_again)
    handler.fails = {("a", "0")}
    send("a", "0", "1")
    eventually(lambda: handler.attempts["a", "0"] >= 2)
    eventually(lambda: admin.stats(log)["subscriptions"]["pulsar-retry"]["msgBacklog"] > 0)
    handler.fails = set()
    eventually(lambda: handler.order["a"] == ["0", "1"])

"""The managed subscriber on a real broker: what becomes of messages and of subscriptions."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
import uuid
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.pull.handling import SOON, Notes, fails
from support.reading import SUBSCRIPTION
from support.waiting import eventually


def test_failures_are_retried_then_dead(start, publish, dead_letters):
    """After `max_attempts`, with the error and the count in the dead letter."""
    notes = Notes(fails)
    subscriber = start(notes)
    publish(b"order", properties={"tenant": "a"}, partition_key="k")
    notes.wait_for(3)
    (dead,) = dead_letters(1)
    letter = pr.DeadLetter.of(dead)
    failure = letter.failure
    assert ("retries-exhausted", "ValueError", 3) == (
        failure.reason,
        failure.error,
        failure.attempt,
    )
    assert (b"order", "k", {"tenant": "a"}) == (
        letter.payload,
        dead.partition_key(),
        letter.properties,
    )
    assert "fails" in (failure.traceback or "")
    report = subscriber.stop()
    assert (2, 1, 0) == (report.retried, report.dead_lettered, report.acknowledged)
    assert 3 == len(notes.seen)


def test_a_letter_says_what_was_asked_for(start, publish):
    """Though none is delivered within half a second, lest a kill counts attempts twice."""
    asked: list[float | None] = []

    def note(message: Any) -> None:
        asked.append(pr.RetryProperties.of(message).delay)
        fails(message)

    policy = pr.RetryPolicy(max_attempts=3, backoff=lambda n: n / 10, jitter="none")
    start(note, retry_policy=policy)
    publish()
    eventually(lambda: asked == [None, 0.1, 0.2])


def test_a_handler_decides(start, publish, dead_letters):
    """Raised or returned, an outcome wins over the policy; `Defer` uses up no attempt."""
    deferred = 0

    def decide(message: Any) -> Any:
        nonlocal deferred
        match message.data():
            case b"reject":
                raise pr.Reject("no-such-customer")
            case b"drop":
                return pr.Drop("seen before")
            case b"retry" if pr.attempt_of(message) == 1:
                return pr.Retry(delay=0)
            case b"defer" if (deferred := deferred + 1) < 6:
                raise pr.Defer(0)
        return None

    notes = Notes(decide)
    subscriber = start(notes)
    for payload in (b"reject", b"drop", b"retry", b"defer"):
        publish(payload)
    notes.wait_for(1 + 1 + 2 + 6)
    (dead,) = dead_letters(1)
    assert "no-such-customer" == pr.DeadLetter.of(dead).failure.reason
    report = subscriber.stop()
    assert (2, 1, 5, 1, 1) == (
        report.acknowledged,
        report.retried,
        report.deferred,
        report.dead_lettered,
        report.dropped,
    )


def test_dead_letters_for_pubsubs_readers(start, publish, dead_letters):
    """Their attributes, and no secret in what the error says."""

    def fail(_message: Any) -> None:
        raise ValueError("password: tea")

    letters = pr.Letters(
        pubsub_attributes=True, redact=lambda _name, text: text.replace("tea", "…")
    )
    start(Notes(fail), letters=letters)
    publish(b"order")
    (dead,) = dead_letters(1)
    properties = dead.properties()
    assert "3" == properties["CloudPubSubDeadLetterSourceDeliveryCount"]
    assert SUBSCRIPTION == properties["CloudPubSubDeadLetterSourceSubscription"]
    assert "password: …" == pr.DeadLetter.of(dead).failure.message
    assert "tea" not in str(properties)


class TestNacks:
    """`redelivery="nack"`: no letters but dead ones."""

    def test_nacked_messages_come_back_and_are_dead_at_last(
        self, start, publish, dead_letters, admin, namespace
    ):
        """As many attempts as with letters, and no retry topic."""
        notes = Notes(fails)
        subscriber = start(notes, redelivery="nack")
        publish(b"order")
        (dead,) = dead_letters(1)
        assert (3, "ValueError") == (len(notes.seen), pr.DeadLetter.of(dead).failure.error)
        assert not [name for name in admin.topics(namespace) if name.endswith("-RETRY")]
        assert (2, 1) == (subscriber.stop().retried, subscriber.result().dead_lettered)

    def test_pubsubs_policies(self, start, publish, dead_letters):
        """Pub/Sub's dead-letter topic is fed by nacks: five attempts, and its attributes."""
        notes = Notes(fails)
        start(
            notes,
            redelivery="nack",
            retry_policy=pr.RetryPolicy.pubsub(0.1, 0.2),
            dead_letter_policy=pr.DeadLetterPolicy.pubsub(),
            letters=pr.Letters(pubsub_attributes=True),
        )
        publish(b"order")
        (dead,) = dead_letters(1)
        assert {b"order": 5} == notes.attempts
        assert "5" == dead.properties()["CloudPubSubDeadLetterSourceDeliveryCount"]
        assert "retries-exhausted" == pr.DeadLetter.of(dead).failure.reason

    def test_the_count_outlives_the_process(self, start, publish, dead_letters):
        """The broker keeps it; only what waits for its delay when a process ends is not counted."""
        notes = Notes(fails)
        publish(b"order")
        slow = pr.RetryPolicy(max_attempts=3, backoff=pr.Fixed(0.5))
        first = start(notes, redelivery="nack", retry_policy=slow)
        start(notes, redelivery="nack", retry_policy=slow)
        notes.wait_for(1)
        first.stop()
        dead_letters(1)
        assert len(notes.seen) in {3, 4}


def test_update_policy(start, publish, dead_letters):
    """A new policy judges the next failure, without a restart; the counts stay."""
    is_updated = threading.Event()

    def fail(message: Any) -> None:
        assert len(notes.seen) < 2 or is_updated.wait(SOON)
        fails(message)

    notes = Notes(fail)
    subscriber = start(notes, retry_policy=pr.RetryPolicy(backoff=pr.Fixed(0.2)))
    publish()
    notes.wait_for(2)
    subscriber.update_policy(pr.RetryPolicy(max_attempts=4, backoff=pr.Immediate()))
    is_updated.set()
    dead_letters(1)
    assert 4 == len(notes.seen)


def test_async_handlers(start, publish, dead_letters):
    """As many at a time as `concurrency` says, on one event loop that is not the caller's."""
    running, most, threads = 0, 0, set()
    together = asyncio.Event()

    async def handle(message: Any) -> None:
        nonlocal running, most
        notes.note(message)
        threads.add(threading.current_thread().name)
        running += 1
        most = max(most, running)
        if running == 4:
            together.set()
        await asyncio.wait_for(together.wait(), SOON)
        await asyncio.sleep(0.05)
        running -= 1
        if message.data() == b"bad":
            raise TimeoutError

    notes = Notes()
    subscriber = start(handle, concurrency=4)
    publish(b"bad")
    for number in range(20):
        publish(b"%d" % number)
    dead_letters(1)
    notes.wait_for(23)
    report = subscriber.stop()
    assert (20, 2, 1) == (report.acknowledged, report.retried, report.dead_lettered)
    assert (4, {"pulsar-retry-loop"}) == (most, threads)


@pytest.mark.parametrize("form", ["def", "async"])
def test_what_a_failed_handler_had_is_freed(start, publish, form):
    """Its error has its frames; nothing keeps the error until the worker's next message."""
    had = []

    def fail(_message: Any) -> None:
        mine = Notes()
        had.append(weakref.ref(mine))
        raise ValueError

    async def fail_async(message: Any) -> None:
        fail(message)

    gc.disable()  # so no cycle has kept it
    try:
        later = pr.RetryPolicy(backoff=pr.Fixed(3600))  # logged without the error itself
        start(fail if form == "def" else fail_async, retry_policy=later)
        publish()
        eventually(lambda: had and had[0]() is None)
    finally:
        gc.enable()


def test_concurrency(start, publish):
    """Handlers that wait do not wait for each other."""
    together = threading.Barrier(5)
    notes = Notes(lambda _message: together.wait(SOON))
    start(notes, concurrency=5)
    for number in range(5):
        publish(b"%d" % number)
    notes.wait_for(5)
    eventually(lambda: not together.n_waiting)
    assert not together.broken


def test_one_consumer_does_not_sit_on_everything(start, publish):
    """A backlog of small messages is shared with who comes later."""
    release = threading.Event()
    for number in range(60):
        publish(b"%d" % number)
    slow, other = Notes(lambda _message: release.wait(SOON)), Notes()
    start(slow, flow_control=pr.FlowControl(prefetch=5), concurrency=1)
    slow.wait_for(1)
    start(other)
    other.wait_for(60 - 30)
    release.set()


@pytest.mark.parametrize(
    ("limits", "size", "concurrency", "begun", "most"),
    [
        (pr.FlowControl(max_messages=7), 1, 3, 3, (7, 7_000)),
        (pr.FlowControl(max_bytes=1_000_000), 100_000, 20, 10, (11, 1_100_000)),
    ],
    ids=["messages", "bytes"],
)
def test_flow_control(start, publish, limits, size, concurrency, begun, most):
    """No more is received than may be in hand; of big messages one more."""
    release = threading.Event()
    notes = Notes(lambda _message: release.wait(SOON))
    subscriber = start(notes, flow_control=limits, concurrency=concurrency)
    for _ in range(30):
        publish(bytes(size))
    notes.wait_for(begun)
    eventually(lambda: subscriber.in_hand[0] >= begun)
    assert all(held <= limit for held, limit in zip(subscriber.in_hand, most, strict=True))
    release.set()
    notes.wait_for(30)
    assert 30 == subscriber.stop().acknowledged


def test_an_existing_subscription_keeps_its_type(client, start, publish, topic):
    """Where somebody is connected with another type, the subscriber takes that."""
    other = client.subscribe(
        topic, SUBSCRIPTION, pulsar.ConsumerType.KeyShared, receiver_queue_size=1
    )
    notes = Notes()
    subscriber = start(notes)
    other.close()
    publish(partition_key="k")
    notes.wait_for(1)
    assert subscriber.running


class TestEnds:
    """How a subscription ends."""

    def test_no_topic(self, client, admin, namespace):
        """Where the broker makes none, `result` and `run` raise what it says."""
        policy = {"allowAutoTopicCreation": False}
        admin.set_namespace_policy(namespace, "autoTopicCreation", policy)
        topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
        subscriber = client.subscriber(topic, SUBSCRIPTION, Notes(), redelivery="nack")
        with pytest.raises(pulsar.PulsarException, match="TopicNotFound"):
            subscriber.start()
        with pytest.raises(pulsar.PulsarException, match="TopicNotFound"):
            subscriber.result(0)
        with pytest.raises(pulsar.PulsarException, match="TopicNotFound"):
            client.subscriber(topic, SUBSCRIPTION, Notes(), redelivery="nack").run()

    def test_the_topic_goes(self, start, admin, namespace, topic, publish):
        """A topic that is deleted, and not made again, ends the subscription with the reason."""
        notes = Notes()
        subscriber = start(notes, redelivery="nack")
        publish()
        notes.wait_for(1)
        policy = {"allowAutoTopicCreation": False}
        admin.set_namespace_policy(namespace, "autoTopicCreation", policy)
        admin.delete_topic(topic)
        with pytest.raises(pulsar.TopicNotFound):
            subscriber.result(SOON)
        assert not subscriber.running

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
    @pytest.mark.parametrize(
        "call",
        [
            lambda it: it.stop(timeout=1),
            lambda it: it.stop("abandon"),
            lambda it: it.result(1),
            lambda it: it.health,
            lambda it: it.in_hand,
            lambda it: it.pause(),
            lambda it: it.__exit__(None, None, None),
        ],
    )
    def test_a_forked_child_is_told(self, start, call):
        """It has none of the threads that it would wait for, and perhaps locks of theirs."""
        subscriber = start(Notes())
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(30)
                call(subscriber)
            except pr.ForkedError:
                status = 0
            finally:
                os._exit(status)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
    @pytest.mark.parametrize("end", [lambda: None, sys.exit, lambda: 1 // 0])
    def test_a_handler_that_returns_in_a_forked_child(self, client, topic, start, tmp_path, end):
        """The child ends, although it has a copy of the messages that are ready."""
        children = []

        def handle(message: Any) -> None:
            with (tmp_path / str(os.getpid())).open("ab", buffering=0) as handled:
                handled.write(b".")
            if message.data() == b"300":  # by then, many are received at once
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
                    child = os.fork()
                if child == 0:
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)
                    signal.alarm(30)
                    end()
                else:
                    children.append(child)

        producer = client.create_producer(topic)
        for number in range(600):
            producer.send_async(b"%d" % number, None)
        producer.flush()
        subscriber = start(handle, concurrency=1)
        eventually(lambda: len(children) == 1)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])
        eventually(lambda: (tmp_path / str(os.getpid())).stat().st_size == 600)
        assert 600 == subscriber.stop().acknowledged
        assert [str(os.getpid())] == [each.name for each in tmp_path.iterdir()]

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_second_signal(self, client, topic, publish, caplog, number):
        """Of SIGTERM nothing comes but a line of the log; Ctrl-C pressed twice abandons."""
        release, began = threading.Event(), threading.Event()

        def handle(_message: Any) -> None:
            began.set()
            release.wait(SOON)

        def send() -> None:
            assert began.wait(SOON)
            os.kill(os.getpid(), number)
            time.sleep(0.3)  # two within a fifth of a second count as one
            while "again" not in caplog.text:
                os.kill(os.getpid(), number)
                time.sleep(0.05)
            if number == signal.SIGTERM:
                release.set()

        publish()
        subscriber = client.subscriber(topic, SUBSCRIPTION, handle)
        before = signal.signal(number, lambda *_: None)  # for one that comes after the end of `run`
        try:
            with caplog.at_level(logging.WARNING, "pulsar_retry"):
                sender = threading.Thread(target=send)
                sender.start()
                report = subscriber.run(timeout=SOON)
                release.set()
                sender.join(SOON)
        finally:
            signal.signal(number, before)
        expected = (1, 0, "drain") if number == signal.SIGTERM else (0, 1, "abandon")
        assert expected == (report.acknowledged, report.abandoned, report.mode)

    def test_handler_errors_do_not(self, start, publish):
        """Nor does what is no `Exception` at all, but for what ends a program."""

        class Away(BaseException):
            """What a framework may raise."""

        def leave(message: Any) -> None:
            if message.data() == b"leave":
                raise Away

        notes = Notes(leave)
        subscriber = start(notes, concurrency=1)
        publish(b"leave")
        publish(b"stay")
        notes.wait_for(4)
        assert subscriber.running
        with pytest.raises(TimeoutError):
            subscriber.result(0)

    def test_reconnecting_is_invisible(self, start, publish, admin, topic):
        """A topic that moves disconnects everybody; the handler sees the next message."""
        notes = Notes()
        subscriber = start(notes)
        publish(b"before")
        notes.wait_for(1)
        admin.unload(topic)
        publish(b"after")
        notes.wait_for(2)
        assert subscriber.running

    def test_a_subscriber_runs_once(self, start):
        """A second start is an error."""
        subscriber = start(Notes())
        with pytest.raises(RuntimeError, match="once"):
            subscriber.start()

    def test_stopped_by_its_handler(self, client, topic, publish):
        """A handler that has seen enough may say so."""
        subscriber: pr.Subscriber
        publish()

        def enough(_message: Any) -> None:
            subscriber.stop()

        subscriber = client.subscriber(topic, SUBSCRIPTION, enough)
        assert 1 == subscriber.run().acknowledged


class TestShutdown:
    """drain, hand_back, abandon: each with a deadline and a report."""

    @pytest.fixture
    def busy(self, start, publish) -> Iterator[tuple[pr.Subscriber, Notes, threading.Event]]:
        """Give a subscriber with one handler that waits for the event, and four behind it."""
        release = threading.Event()
        notes = Notes(lambda _message: release.wait(SOON))
        for number in range(5):
            publish(b"%d" % number)
        subscriber = start(notes, concurrency=1)
        notes.wait_for(1)
        yield subscriber, notes, release
        release.set()

    def test_drain(self, busy, admin, topic):
        """What is in hand is handled, nothing more is received."""
        subscriber, notes, release = busy
        threading.Timer(0.3, release.set).start()
        report = subscriber.stop("drain")
        assert (len(notes.seen), 0, True) == (
            report.acknowledged,
            report.abandoned,
            report.complete,
        )
        eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 5 - len(notes.seen))

    def test_drain_has_a_deadline(self, busy, client, topic):
        """Then what is left is abandoned: it is redelivered, and what it says is too late."""
        subscriber, notes, release = busy
        report = subscriber.stop("drain", timeout=0.3)
        assert 1 == report.abandoned
        assert not report.complete
        again = Notes()
        with client.subscriber(topic, SUBSCRIPTION, again):
            again.wait_for(5)
        release.set()
        assert 1 == len(notes.seen)

    def test_hand_back(self, busy, client, topic):
        """The handler that runs may return; others get the rest at once."""
        subscriber, _, release = busy

        def let_out() -> None:
            eventually(lambda: subscriber.health.state == "stopping")
            release.set()

        threading.Thread(target=let_out).start()
        report = subscriber.stop("hand_back")
        assert (1, 0) == (report.acknowledged, report.abandoned)
        again = Notes()
        with client.subscriber(topic, SUBSCRIPTION, again):
            again.wait_for(4)

    def test_abandon(self, busy, client, topic):
        """Nothing is waited for."""
        subscriber, _, _ = busy
        report = subscriber.stop("abandon")
        assert (0, 1) == (report.acknowledged, report.abandoned)
        again = Notes()
        with client.subscriber(topic, SUBSCRIPTION, again):
            again.wait_for(5)

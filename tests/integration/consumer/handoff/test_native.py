"""The ends that a hand-off in C++ can meet: of the process, the consumer, and the wait for it."""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import subprocess
import sys
import time

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.consumer import access
from pulsar_retry.consumer.handoff.making import LetterMaker
from pulsar_retry.letters import letter
from pulsar_retry.letters.letter import retried, used_up
from pulsar_retry.native.loading import native
from pulsar_retry.observe.counting import BOOK
from support.reading import FROM_START, RETRYING, SOON, SUBSCRIPTION, read_all, receive_all
from support.waiting import eventually

COUNT = 500

#: The properties of a failure that differ for each message.
TIMES = ("FAILURE_TIME", "FAILURE_HISTORY", "FAILURE_PUBLISH_TIME", "FAILURE_STAMP")

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@pytest.fixture(autouse=True)
def _is_native():
    """Skip where letters are handed off in Python."""
    if native().module is None:
        pytest.skip(f"skipped, because letters are handed off in Python: {native().why}")


def fill(client, topic, count=COUNT):
    """Publish *count* messages, each with its number."""
    producer = client.create_producer(topic)
    for number in range(count):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    producer.close()


def handed_on(consumer, count=COUNT, **options):
    """Receive *count* messages, and then hand them on; return the futures."""
    messages = [consumer.receive(SOON) for _ in range(count)]
    return [consumer.reconsume_later_async(each, **options) for each in messages]


def test_it_is_used(client, topic):
    """The consumer's letters are handed off in C++."""
    fill(client, topic, 1)
    consumer = client.subscribe(topic, SUBSCRIPTION, **RETRYING)
    handed_on(consumer, 1)[0].result(SOON / 1000)
    (slot,) = consumer._outbox._hand_off.producers._slots.values()
    assert type(slot.producer).__name__ == "NativeProducer"


@pytest.fixture
def made(monkeypatch):
    """Collect the letters that Python makes."""
    letters = []
    for each in (LetterMaker.retry, LetterMaker.dead, LetterMaker.remake):

        def make(*arguments, each=each):
            letters.append(each)
            return each(*arguments)

        monkeypatch.setattr(LetterMaker, each.__name__, make)
    return letters


@pytest.mark.parametrize("shell", ["sync", "asyncio"])
def test_letters_are_made_in_cpp(broker, client, topic, shell, made):
    """The first letter opens the producer, the second tells C++ the topic; no more are Python's."""
    fill(client, topic, 5)
    if shell == "sync":
        consumer = client.subscribe(topic, SUBSCRIPTION, **RETRYING)
        for message in [consumer.receive(SOON) for _ in range(5)]:
            consumer.reconsume_later(message, delay=2)
        again = consumer
    else:

        async def hand_on():
            async with pr.asyncio.Client(broker.service_url, logger=QUIET) as own:
                consumer = await own.subscribe(topic, SUBSCRIPTION, **RETRYING)
                for message in [await consumer.receive(SOON) for _ in range(5)]:
                    await consumer.reconsume_later(message, delay=2)

        asyncio.run(hand_on())
        again = client.subscribe(topic, SUBSCRIPTION, **RETRYING)
    assert 2 == len(made)
    assert ["1"] * 5 == [again.receive(SOON).properties()["RECONSUMETIMES"] for _ in range(5)]


@pytest.mark.parametrize("shell", ["sync", "asyncio"])
def test_dead_letters_are_made_in_cpp(broker, client, topic, shell, made):
    """As many as of retry letters are made in Python, and all say the same about the failure."""
    fill(client, topic, 5)
    error = ValueError("no amount")
    if shell == "sync":
        consumer = client.subscribe(topic, SUBSCRIPTION, **RETRYING)
        for _ in range(5):
            consumer.dead_letter(consumer.receive(SOON), reason="invalid", error=error)
    else:

        async def give_up():
            async with pr.asyncio.Client(broker.service_url, logger=QUIET) as own:
                consumer = await own.subscribe(topic, SUBSCRIPTION, **RETRYING)
                for _ in range(5):
                    message = await consumer.receive(SOON)
                    await consumer.dead_letter(message, reason="invalid", error=error)

        asyncio.run(give_up())
    assert 2 == len(made)
    assert_alike(read_all(client, f"{topic}-{SUBSCRIPTION}-DLQ", 5))


def test_a_subscriber_s_dead_letters_are_made_in_cpp(client, topic, made):
    """Those of a first failure that is not retried, counted under their reason."""
    fill(client, topic, 5)

    def handle(message):
        raise ValueError("no amount")

    policy = pr.RetryPolicy(dead_letter_on=(ValueError,))
    with client.subscriber(topic, SUBSCRIPTION, handle, retry_policy=policy):
        assert_alike(read_all(client, f"{topic}-{SUBSCRIPTION}-DLQ", 5))
    assert 1 >= len(made)
    counters = BOOK.counters(topic, SUBSCRIPTION)
    with counters.lock:
        assert {"not-retryable": 5} == counters.tally("dead_letters").counts


@pytest.fixture
def made_of_failures(monkeypatch):
    """Collect the names of the functions that make letters of failures in Python."""
    names = []
    for each in (retried, used_up):

        def make(*arguments, each=each, **more):
            names.append(each.__name__)
            return each(*arguments, **more)

        monkeypatch.setattr(access, each.__name__, make)
        monkeypatch.setattr(letter, each.__name__, make)
    return names


def fail(message):
    """Handle no message."""
    raise ValueError("no amount")


def test_a_subscriber_s_retries_are_made_in_cpp(client, topic, made_of_failures):
    """The first letter opens the producer, the second tells C++ the topic; all say the same."""
    fill(client, topic, 5)
    policy = pr.RetryPolicy(backoff=pr.Fixed(3600))
    with client.subscriber(topic, SUBSCRIPTION, fail, retry_policy=policy, concurrency=1):
        letters = read_all(client, f"{topic}-{SUBSCRIPTION}-RETRY", 5)  # not Shared: at once
    assert ["retried"] * 2 == made_of_failures
    assert_alike(letters)
    assert ["3600000"] * 5 == [each.properties()["DELAY_TIME"] for each in letters]


def test_the_letters_of_a_letter_are_made_in_cpp(client, topic, made_of_failures):
    """They continue its history, which is complete in the dead letter."""
    fill(client, topic, 5)
    policy = pr.RetryPolicy(max_attempts=4, backoff=pr.Fixed(0.5))
    with client.subscriber(topic, SUBSCRIPTION, fail, retry_policy=policy, concurrency=1):
        letters = read_all(client, f"{topic}-{SUBSCRIPTION}-DLQ", 5)
    assert ["retried", "retried", "used_up"] == made_of_failures
    for each in letters:
        failure = pr.DeadLetter.of(each).failure
        assert [1, 2, 3, 4] == [one.number for one in failure.history]
        times = [one.when for one in failure.history]
        assert sorted(times) == times
        assert failure.published < times[0]
        assert "4" == each.properties()["RECONSUMETIMES"]
        assert "FAILURE_STAMP" not in each.properties()


def assert_alike(letters):
    """Check that letters say the same, apart from their times and origins."""
    found = [
        {
            name: text
            for name, text in each.properties().items()
            if not name.startswith("ORIGIN_") and name not in TIMES
        }
        for each in letters
    ]
    assert found[1:] == found[:1] * (len(found) - 1)
    assert {"FAILURE_STAGE", "FAILURE_ERROR", "FAILURE_MESSAGE"} <= set(found[0])
    for each in letters:
        failure = pr.DeadLetter.of(each).failure
        assert failure.published is not None
        assert [(1, failure.when)] == [(one.number, one.when) for one in failure.history]


def test_every_form_of_message(client, topic):
    """What a letter takes over from its message, it has: payload, keys, event time, properties."""
    consumer = client.subscribe(topic, SUBSCRIPTION, **RETRYING)
    producer = client.create_producer(topic)
    sent = [
        {"content": b""},
        {"content": b"\x00\xff" * 500_000},
        {"content": b"key", "partition_key": "ü", "ordering_key": "o", "event_timestamp": 77},
        {"content": b"properties", "properties": {"ä": "ö", "empty": ""}},
    ]
    for message in sent:
        producer.send(**message)
    for future in handed_on(consumer, len(sent), delay=2, properties={"mine": "too"}):
        future.result(SOON / 1000)
    came = sorted((consumer.receive(SOON) for _ in sent), key=lambda m: m.data())
    wanted = sorted(sent, key=lambda each: each["content"])
    for each, message in zip(wanted, came, strict=True):
        assert each["content"] == message.data()
        assert each.get("partition_key", "") == message.partition_key()
        assert each.get("ordering_key", "") == message.ordering_key()
        assert each.get("event_timestamp", 0) == message.event_timestamp()
        properties = message.properties()
        assert (each.get("properties", {}) | {"mine": "too"}).items() <= properties.items()
        assert "1" == properties["RECONSUMETIMES"]
        consumer.acknowledge(message)


def test_closed_with_letters_in_flight(client, topic):
    """`close` waits for them: each original is acknowledged, and each future is resolved."""
    fill(client, topic)
    consumer = client.subscribe(topic, SUBSCRIPTION, **RETRYING)
    futures = handed_on(consumer, delay=0)
    consumer.close()
    assert all(each.done() and each.exception() is None for each in futures)
    again = client.subscribe(topic, SUBSCRIPTION, **RETRYING)
    assert COUNT == len(receive_all(again, count=COUNT))


def test_shut_down_with_letters_in_flight(broker, client, topic):
    """After `Client.shutdown` each future is resolved, and each message is there."""
    fill(client, topic)
    own = pr.Client(broker.service_url, logger=QUIET)
    futures = handed_on(own.subscribe(topic, SUBSCRIPTION, **RETRYING), delay=0)
    own.shutdown()
    eventually(lambda: all(each.done() for each in futures))
    again = client.subscribe(topic, SUBSCRIPTION, **RETRYING)
    assert {b"%d" % number for number in range(COUNT)} == set(receive_all(again, different=COUNT))


PROGRAM = """
import os, sys
import pulsar
import pulsar_retry as pr
client = pr.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
consumer = client.subscribe(
    sys.argv[2], "billing", pulsar.ConsumerType.Shared, enable_retry=True,
    initial_position=pulsar.InitialPosition.Earliest,
)
for _ in range(int(sys.argv[3])):
    consumer.reconsume_later_async(consumer.receive(60_000), delay=0)
print("sent", flush=True)
{}
"""


@pytest.mark.parametrize(
    "end", ["", "del consumer, client", "sys.exit(0)", "os._exit(0)"], ids=lambda each: each or "-"
)
def test_the_process_ends_with_letters_in_flight(broker, client, topic, end):
    """It ends with 0 and without a word, and nothing is lost."""
    fill(client, topic)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{}", end), broker.service_url, topic, str(COUNT)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (0, "sent\n", "") == (done.returncode, done.stdout, done.stderr)
    again = client.subscribe(topic, SUBSCRIPTION, **RETRYING)
    assert {b"%d" % number for number in range(COUNT)} == set(receive_all(again, different=COUNT))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="skipped, because there is no fork")
def test_a_forked_child(client, topic):
    """A child can end, and garbage it collects, while its parent's letters are in flight."""
    fill(client, topic)
    consumer = client.subscribe(topic, SUBSCRIPTION, **RETRYING)
    futures = handed_on(consumer, COUNT // 2, delay=0)
    message = consumer.receive(SOON)
    child = os.fork()
    if not child:
        code = 1
        try:
            try:
                consumer.reconsume_later_async(message)
            except pr.ForkedError:
                futures.clear()
                gc.collect()
                code = 0
        finally:
            os._exit(code)
    futures.append(consumer.reconsume_later_async(message))
    assert (child, 0) == os.waitpid(child, 0)
    for each in futures:
        each.result(SOON / 1000)


@pytest.fixture
def slow(client, topic):
    """Give a producer that sends nothing before it is flushed."""
    hour = 3_600_000
    return client.create_producer(
        f"{topic}-slow", batching_enabled=True, batching_max_publish_delay_ms=hour
    )


@pytest.mark.parametrize("posts", [False, True])
def test_given_up(client, topic, slow, posts):
    """An original whose letter was given up is not acknowledged, and comes again."""
    fill(client, topic, 1)
    bare = client.subscribe(topic, SUBSCRIPTION, **FROM_START)
    outcomes = native().module.Outcomes()
    message = bare.receive(SOON)
    sender = outcomes.sender(slow._producer)
    job = sender.send(message._message, bare._consumer, {"a": "b"}, 0, object(), posts)
    assert not outcomes.give_up(job)

    def is_over():
        slow.flush()  # the letter is published if it was sent, and has its receipt then
        assert ([], []) == outcomes.take(0, 32, 0, 0)
        return not len(outcomes)

    eventually(is_over)
    bare.redeliver_unacknowledged_messages()
    assert message.message_id() == bare.receive(SOON).message_id()


def test_given_up_too_late(client, admin, topic):
    """An original whose letter is published is acknowledged, also if nobody waits any more."""
    fill(client, topic, 1)
    bare = client.subscribe(topic, SUBSCRIPTION, **FROM_START)
    outcomes = native().module.Outcomes()
    message = bare.receive(SOON)
    sender = outcomes.sender(client.create_producer(f"{topic}-elsewhere")._producer)
    posts = False
    job = sender.send(message._message, bare._consumer, {"a": "b"}, 0, object(), posts)
    eventually(lambda: outcomes.is_out(job))
    assert outcomes.give_up(job)
    while len(outcomes):
        assert ([], []) == outcomes.take(SOON, 32, 0, 0)
    eventually(lambda: 0 == admin.backlog(topic, SUBSCRIPTION))


def test_the_sending_thread_wakes_up(client, topic, slow):
    """For one letter too, while many have no receipt; otherwise it would wait for a second."""
    fill(client, topic, 1)
    source = client.subscribe(topic, SUBSCRIPTION, **FROM_START)
    raw, bare = source.receive(SOON)._message, source._consumer
    quick = client.create_producer(f"{topic}-quick")
    outcomes = native().module.Outcomes()
    flying, sender = outcomes.sender(slow._producer), outcomes.sender(quick._producer)
    posts, took = True, []
    for _ in range(100):
        flying.send(raw, bare, {}, 0, None, not posts)
    for number in range(21):  # one after the other: the thread has always just fallen asleep
        began, succeeded = time.monotonic(), []
        sender.send(raw, bare, {}, 0, number, posts)
        while number not in succeeded:
            succeeded += outcomes.take(SOON, 1_000, 0, 0)[0]
        took.append(time.monotonic() - began)
    slow.flush()
    assert statistics.median(took) < 0.5

"""The ends that a hand-off in C++ can meet: of the process, the consumer, and the wait for it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.native.loading import native
from support.reading import (
    FROM_START,
    RETRYING,
    SOON,
    SUBSCRIPTION,
    read_all,
    receive_different,
)
from support.waiting import eventually

COUNT = 500

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


def test_raw_consumers_of_earlier_are_freed(client, topic):
    """A subscriber that pauses again and again has new ones each time; a closed one keeps 20 kB."""
    consumer = client.subscribe(topic, SUBSCRIPTION, **RETRYING)
    earlier = []
    for _ in range(5):
        fill(client, topic, 1)
        handed_on(consumer, 1, delay=0)[0].result(SOON / 1000)
        handed_on(consumer, 1, delay=3600)[0].result(SOON / 1000)  # from the retry topic
        earlier += [source.raw for source in consumer.handle.in_hand.sources]
        consumer.handle.suspend()
        consumer.handle.resume()
    owners = [sys.getrefcount(raw) for raw in earlier[2:]]  # the consumer itself has the first
    assert owners[0] == owners[1] < owners[-1] == owners[-2]


def test_it_is_used(client, topic):
    """The consumer's letters are handed off in C++."""
    fill(client, topic, 1)
    consumer = client.subscribe(topic, SUBSCRIPTION, **RETRYING)
    handed_on(consumer, 1)[0].result(SOON / 1000)
    (outlet,) = consumer._outbox.hand_off.producers._outlets.values()
    assert type(outlet.sender).__name__ == "NativeSender"


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


def test_shut_down_with_letters_in_flight(broker, client, topic):
    """After `Client.shutdown` each future is resolved, and each message is there."""
    fill(client, topic)
    own = pr.Client(broker.service_url, operation_timeout_seconds=90, logger=QUIET)
    futures = handed_on(own.subscribe(topic, SUBSCRIPTION, **RETRYING), delay=0)
    own.shutdown()
    eventually(lambda: all(each.done() for each in futures))
    again = client.subscribe(topic, SUBSCRIPTION, **RETRYING)
    assert {b"%d" % number for number in range(COUNT)} == receive_different(again, COUNT)


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
    assert {b"%d" % number for number in range(COUNT)} == receive_different(again, COUNT)


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
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(120)  # a child that hangs is killed
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


def test_given_up(client, topic, slow):
    """An original whose letter was given up is not acknowledged, and comes again."""
    fill(client, topic, 1)
    bare = client.subscribe(topic, SUBSCRIPTION, **FROM_START)
    outcomes = native().module.Outcomes()
    message = bare.receive(SOON)
    sender = outcomes.sender(slow._producer)
    job = sender.send(message._message, bare._consumer, {"a": "b"}, 0, object())
    assert not outcomes.give_up(job)
    assert 0 == len(outcomes)
    slow.flush()  # the letter is published, and has its receipt
    bare.redeliver_unacknowledged_messages()
    assert message.message_id() == bare.receive(SOON).message_id()


def test_given_up_too_late(client, admin, topic):
    """An original whose letter is published is acknowledged, and its outcome is told."""
    fill(client, topic, 1)
    bare = client.subscribe(topic, SUBSCRIPTION, **FROM_START)
    outcomes = native().module.Outcomes()
    message = bare.receive(SOON)
    sender = outcomes.sender(client.create_producer(f"{topic}-elsewhere")._producer)
    job = sender.send(message._message, bare._consumer, {"a": "b"}, 0, "token")
    assert (["token"], []) == outcomes.take(SOON, 32, 0, 0)
    assert outcomes.give_up(job)
    eventually(lambda: 0 == admin.backlog(topic, SUBSCRIPTION))


@pytest.fixture
def bare(client, topic):
    """Give a consumer without retries, and its messages."""
    fill(client, topic)
    bare = client.subscribe(topic, SUBSCRIPTION, **FROM_START)
    return bare, [bare.receive(SOON) for _ in range(COUNT)]


def sent_on(client, topic, bare, properties):
    """Send a letter of each message of *bare* to *topic*; return outcomes, ids and producer."""
    consumer, messages = bare
    outcomes, producer = native().module.Outcomes(), client.create_producer(topic)
    send = outcomes.sender(producer._producer).send
    raw = consumer._consumer
    return outcomes, producer, [send(each._message, raw, properties, 0, 0) for each in messages]


def test_a_producer_has_all_letters_in_their_order(client, topic, bare):
    """After `send_all`, a flush waits for each, and a letter never overtakes another one."""
    outcomes, producer, jobs = sent_on(client, f"{topic}-letters", bare, {})
    outcomes.send_all()
    producer.flush()
    producer.close()
    assert sorted(jobs) == jobs
    letters = [each.data() for each in read_all(client, f"{topic}-letters", COUNT)]
    assert [b"%d" % number for number in range(COUNT)] == letters
    ended = 0
    while ended < COUNT:
        succeeded, failed = outcomes.take(SOON, 32, 0, 0)
        assert not failed
        ended += len(succeeded)
    assert 0 == len(outcomes)


def test_given_up_while_it_is_sent(client, topic, bare):
    """Exactly the messages come again whose letters were given up in time."""
    outcomes, producer, jobs = sent_on(client, f"{topic}-letters", bare, {})
    late = {job for job in reversed(jobs) if outcomes.give_up(job)}
    outcomes.send_all()
    producer.flush()
    consumer, messages = bare
    while len(outcomes):
        outcomes.take(SOON, 32, 0, 0)
    consumer.close()
    again = client.subscribe(topic, SUBSCRIPTION, **FROM_START)
    wanted = {m.data() for m, job in zip(messages, jobs, strict=True) if job not in late}
    assert wanted == receive_different(again, len(wanted))

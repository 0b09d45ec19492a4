"""Snapshots of a subscription with its letters, on a real broker."""

from __future__ import annotations

import itertools
import os
from datetime import UTC, datetime, timedelta
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.admin.position import Position
from pulsar_retry.replay import Snapshot, Subscription, seek
from pulsar_retry.replay.ack_state import EntryPlace
from pulsar_retry.replay.seeking import mover
from pulsar_retry.replay.seeking.acking import acknowledge
from support.encrypting import key_files
from support.reading import SOON, SUBSCRIPTION
from support.replay.replaying import (
    consume,
    drained,
    firsts,
    ledgers,
    received,
    subscription_of,
    trim,
)
from support.waiting import eventually

EARLIEST = pulsar.InitialPosition.Earliest


@pytest.fixture
def in_days(monkeypatch) -> Any:
    """Return a function that sets the clock so many days ahead."""

    def in_days(days: float) -> None:
        clock = "pulsar_retry.replay.seeking.snapshot._now"
        monkeypatch.setattr(clock, lambda: datetime.now(UTC) + timedelta(days=days))

    return in_days


def acknowledge_some(admin: Any, topic: str, consumer: Any, done: set[bytes], count: int) -> None:
    """Receive *count* messages, acknowledge those in *done*, and give the others back."""
    messages = [consumer.receive(SOON) for _ in range(count)]
    for message in messages:
        if message.data() in done:
            consumer.acknowledge(message)
        else:
            consumer.negative_acknowledge(message, delay=3600)
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == count - len(done))


def test_restore_twice(admin, topic, subscription, subscribe, publish):
    """What was not acknowledged comes again, and what is published since: any number of times."""
    consumer = subscribe(initial_position=EARLIEST)
    for n in range(8):
        publish(f"{n}".encode())
    acknowledge_some(admin, topic, consumer, {b"0", b"1", b"3", b"5", b"6"}, 8)

    snapshot = Snapshot.create(subscription, name="before-deploy")
    seek(subscription, "latest")
    publish(b"new")
    consume(consumer, 1)

    assert 3 == snapshot.backlog
    for _ in range(2):
        consumer.close()
        report = snapshot.restore()
        assert 4 == report.backlog_after
        consumer = subscribe()
        assert firsts("2", "4", "7", "new") == received(consumer, "2", "4", "7", "new")
        drained(admin, topic)


def test_messages_are_kept(admin, topic, subscription, consumer, publish):
    """A snapshot keeps its messages without any retention, until it is deleted."""
    publish(b"1")
    publish(b"2")
    consume(consumer, 1)
    consumer.receive(SOON)
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 1)
    snapshot = Snapshot.create(subscription)
    before = ledgers(admin, topic)
    seek(subscription, "latest")
    eventually(lambda: admin.has_stored_acks(topic, SUBSCRIPTION))
    admin.unload(topic)
    publish(b"3")
    assert set(before) <= set(ledgers(admin, topic))

    snapshot.restore()
    assert {b"2", b"3"} == {payload for payload, _ in received(consumer, "2", "3")}

    snapshot.delete()
    trim(admin, topic)
    snapshot.delete()  # once more is no error
    with pytest.raises(pr.SnapshotError, match="has expired or was deleted"):
        snapshot.restore()


def test_partitions(admin, topic, subscription, subscribe, publish):
    """All partitions of both topics are captured, and come back together."""
    admin.create_partitioned_topic(topic, 3)
    admin.create_partitioned_topic(subscription.retry_letter_topic, 2)
    consumer = subscribe(
        initial_position=EARLIEST, dead_letter_policy=pr.DeadLetterPolicy(9), delay_levels="1h"
    )
    names = [f"{n}" for n in range(12)]
    for name in names:
        publish(name.encode(), partition_key=name)
    for _ in names:
        message = consumer.receive(SOON)
        if int(message.data()) < 4:
            consumer.acknowledge(message)
        elif int(message.data()) < 7:
            consumer.reconsume_later(message)
    parts = [f"{topic}-partition-{n}" for n in range(3)]
    eventually(lambda: sum(admin.backlog(each, SUBSCRIPTION) for each in parts) == 5)

    snapshot = Snapshot.create(subscription, name="s")
    seek(subscription, "latest")
    publish(b"new")

    assert 8 == snapshot.backlog
    report = snapshot.restore()
    assert 3 == report.letters.reset
    assert set(firsts(*names[4:], "new")) <= set(received(consumer, *names[4:], "new"))
    for each in parts:
        drained(admin, each)


def test_letters(admin, topic, subscription, consumer, publish):
    """Letters come back once each, from 1, also when others were written since."""
    for n in range(4):
        publish(f"{n}".encode())
    for message in [consumer.receive(SOON) for _ in range(4)]:
        if message.data() in {b"0", b"1"}:
            consumer.reconsume_later(message)
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 2)

    snapshot = Snapshot.create(subscription)
    seek(subscription, "earliest")
    for _ in range(4):  # letters of all, younger than the snapshot
        consumer.reconsume_later(consumer.receive(SOON))
    drained(admin, topic)

    for _ in range(2):
        report = snapshot.restore()
        assert 2 == report.letters.reset
        assert firsts("0", "1", "2", "3") == sorted(set(received(consumer, "0", "1", "2", "3")))
        drained(admin, subscription.retry_letter_topic)
    assert 4 == report.backlog_after + report.letters.reset


def test_another_subscription(broker, client, admin, topic, subscription, consumer, publish):
    """A new subscription gets what the other had not acknowledged, letters too; repeatedly."""
    for n in range(4):
        publish(f"{n}".encode())
    for message in [consumer.receive(SOON) for _ in range(4)]:
        if message.data() == b"0":
            consumer.acknowledge(message)
        elif message.data() == b"1":
            consumer.reconsume_later(message)
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 2)
    snapshot = Snapshot.create(subscription)
    other = subscription_of(broker, topic, "other")

    with pytest.raises(pr.SnapshotError, match="a dry run does not"):
        snapshot.restore(other, dry_run=True)
    for _ in range(2):
        report = seek(other, snapshot)
        assert 1 == report.letters.copied
    theirs = client.subscribe(
        topic, "other", consumer_type=pulsar.ConsumerType.Shared, enable_retry=True
    )

    messages = {m.data(): m for m in consume(theirs, 3)}
    assert {b"1", b"2", b"3"} == set(messages)
    assert "other" == pr.RetryProperties.of(messages[b"1"]).real_subscription
    assert [] == received(theirs)
    assert 1 == admin.backlog(subscription.retry_letter_topic, SUBSCRIPTION)


@pytest.fixture
def held(client, topic, subscription, consumer, tmp_path) -> Any:
    """Return a function that publishes letters of the subscription, each as an original's."""
    keys = pulsar.CryptoKeyReader(*key_files(tmp_path))

    def publish(payload: bytes, number: int, *, encrypted: bool = False) -> None:
        secret = {"encryption_key": "key", "crypto_key_reader": keys} if encrypted else {}
        producer = client.create_producer(
            subscription.retry_letter_topic, chunking_enabled=True, **secret
        )
        properties = {
            "REAL_TOPIC": topic,
            "REAL_SUBSCRIPTION": SUBSCRIPTION,
            "RECONSUMETIMES": "1",
            "ORIGIN_MESSAGE_ID": f"1:{number}:-1",
        }
        producer.send(payload, properties=properties, deliver_after=timedelta(hours=1))
        producer.close()

    return publish


@pytest.mark.parametrize("partitions", [0, 2])
def test_letters_in_chunks_for_another_subscription(
    broker, client, admin, topic, subscription, request, partitions
):
    """They are copied, also if one is the first of its partition."""
    if partitions:
        admin.create_partitioned_topic(subscription.retry_letter_topic, partitions)
    publish = request.getfixturevalue("held")
    payloads = [os.urandom(12_000_000), b"small", os.urandom(12_000_001), b"little"]
    for number, payload in enumerate(payloads):
        publish(payload, number)
    snapshot = Snapshot.create(subscription)
    other = subscription_of(broker, topic, "other")

    report = snapshot.restore(other)

    assert (4, 0, True) == (report.letters.copied, report.letters.unreadable, report.is_complete)
    theirs = client.subscribe(
        topic, "other", consumer_type=pulsar.ConsumerType.Shared, enable_retry=True
    )
    assert firsts(*payloads) == received(theirs, *payloads)


def test_what_is_not_copied_is_told(broker, topic, subscription, run, held, monkeypatch):
    """A letter that cannot be read, or cannot be read again, makes the restore incomplete."""
    held(b"1", 1)
    held(b"2", 2)
    snapshot = Snapshot.create(subscription, name="one")
    places = mover.read_places

    def one_less(client: Any, admin: Any, seen: Any, *wanted: Any, **options: Any) -> Any:
        found = places(client, admin, seen, *wanted, **options)
        return itertools.islice(found, 1) if wanted else found

    with monkeypatch.context() as patch:
        patch.setattr(mover, "read_places", one_less)
        report = snapshot.restore(subscription_of(broker, topic, "lacks"))
        assert (1, 1, False) == (
            report.letters.copied,
            report.letters.unreadable,
            report.is_complete,
        )
        assert "1 letters of the snapshot" in report.problems[0]
        again = snapshot.restore()
        assert (1, 1, False) == (again.letters.reset, again.letters.unreadable, again.is_complete)

    held(bytes(12_000_000), 3, encrypted=True)
    Snapshot.create(subscription, name="two")
    code, shown, errors = run("snapshot", "restore", topic, "fresh", "two", "--yes")
    assert (1, True) == (code, "copied from the snapshot's subscription" in shown)
    assert "could not be read" in errors


def test_list_get_delete(broker, topic, subscription, consumer, publish):
    """Snapshots are found by topic, subscription and name."""
    publish(b"1")
    cluster = subscription.cluster
    first = Snapshot.create(subscription, name="a")
    second = Snapshot.create(subscription)

    assert ["a", second.name] == [each.name for each in Snapshot.list(cluster, topic)]
    assert [] == Snapshot.list(cluster, topic, subscription="other")
    assert first == Snapshot.get(cluster, topic, "a")
    with pytest.raises(pr.SnapshotError, match="there is already a snapshot 'a'"):
        Snapshot.create(subscription, name="a")
    first.delete()
    with pytest.raises(pr.SnapshotError, match="no snapshot 'a'"):
        Snapshot.get(cluster, topic, "a")
    with pytest.raises(pr.SnapshotError, match="no topic"):
        Snapshot.list(cluster, f"{topic}-none")


def test_expiry(admin, topic, subscription, consumer, publish, in_days):
    """It lives 7 days less the age of its oldest message, at least an hour, and then is removed."""
    published = publish(b"1") and datetime.now(UTC)
    near = timedelta(minutes=5)

    week = Snapshot.create(subscription, name="week")
    in_days(6)
    day = Snapshot.create(subscription, name="day")
    in_days(6.97)
    with pytest.raises(pr.SnapshotError, match="expire in less than an hour"):
        Snapshot.create(subscription)
    in_days(0)

    for each in (week, day):
        assert abs(each.expires - (published + timedelta(days=7))) < near
    assert ["week", "day"] == [s.name for s in Snapshot.list(subscription.cluster, topic)]
    in_days(7.1)
    assert [] == Snapshot.list(subscription.cluster, topic)
    names = admin.get(f"{topic.replace('://', '/')}/subscriptions")
    assert [SUBSCRIPTION] == names
    names = admin.get(f"{subscription.retry_letter_topic.replace('://', '/')}/subscriptions")
    assert [SUBSCRIPTION] == names
    with pytest.raises(pr.SnapshotError, match="has expired"):
        week.restore()


def test_the_oldest_message_is_in_chunks_that_are_compressed(client, topic, subscription, consumer):
    """The broker cannot say when it was published, so it is read."""
    zipped = {"chunking_enabled": True, "compression_type": pulsar.CompressionType.ZLib}
    producer = client.create_producer(topic, batching_enabled=False, **zipped)
    producer.send(os.urandom(6_000_000))
    published = consumer.receive(SOON).publish_timestamp() / 1000

    snapshot = Snapshot.create(subscription)

    assert datetime.fromtimestamp(published, UTC) + timedelta(days=7) == snapshot.expires


def test_nothing_unacknowledged(admin, topic, subscription, consumer, publish):
    """A snapshot of an empty backlog lives 7 days and replays what is published since."""
    publish(b"1")
    consume(consumer, 1)
    drained(admin, topic)

    snapshot = Snapshot.create(subscription)
    publish(b"2")
    consume(consumer, 1)
    snapshot.restore()

    assert timedelta(days=7) == snapshot.expires - snapshot.created
    assert set(firsts("2")) == set(received(consumer, "2"))


def test_a_killed_creation_is_removed(
    monkeypatch, admin, topic, subscription, consumer, publish, in_days
):
    """What a process left that died while it made a snapshot is found by the janitor."""
    publish(b"1")
    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "_pinned", _die)
        patch.setattr(Snapshot, "_delete", _die)
        with pytest.raises(KeyboardInterrupt):
            Snapshot.create(subscription, name="half")

    assert [] == Snapshot.list(subscription.cluster, topic)
    # It may still be under way.
    assert 2 == len(admin.get(f"{topic.replace('://', '/')}/subscriptions"))
    in_days(0.1)
    assert [] == Snapshot.list(subscription.cluster, topic)
    for each in (topic, subscription.retry_letter_topic):
        assert [SUBSCRIPTION] == admin.get(f"{each.replace('://', '/')}/subscriptions")


def _die(*_arguments: Any, **_options: Any) -> None:
    raise KeyboardInterrupt


def test_a_capture_that_is_too_large(monkeypatch, admin, topic, subscription, consumer, publish):
    """The smallest acknowledged ranges are forgotten: their messages come again; it is said."""
    for n in range(9):
        publish(f"{n}".encode())
    acknowledge_some(admin, topic, consumer, {b"1", b"3", b"5", b"6", b"7"}, 9)
    whole = Snapshot.create(subscription, name="whole")
    monkeypatch.setattr("pulsar_retry.replay.seeking.snapshot.MOST_RANGES", 0)
    forgetful = Snapshot.create(subscription, name="forgetful")

    assert (4, 9) == (whole.backlog, forgetful.backlog)
    assert () == whole.warnings
    assert "5 messages are acknowledged behind others" in forgetful.warnings[0]
    assert 9 == forgetful.restore().backlog_after


def test_batches(client, admin, topic, subscription, subscribe):
    """A batch that is acknowledged in part comes again as a whole, a finished one does not."""
    consumer = subscribe(
        initial_position=EARLIEST, batch_index_ack_enabled=True, enable_retry=False
    )
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=500
    )
    for batch in ("a", "b"):
        for n in range(4):
            producer.send_async(f"{batch}{n}".encode(), lambda *_: None)
        producer.flush()
    messages = [consumer.receive(SOON) for _ in range(8)]
    assert 2 == len({m.message_id().entry_id() for m in messages})
    for message in messages:
        if message.data() not in {b"b2", b"b3"}:
            consumer.acknowledge(message)
    stats = f"{topic.replace('://', '/')}/internalStats"
    first = f":{messages[0].message_id().entry_id()}"
    eventually(
        lambda: admin.get(stats)["cursors"][SUBSCRIPTION]["markDeletePosition"].endswith(first)
    )
    snapshot = Snapshot.create(subscription)
    consumer.close()
    seek(subscription, "latest")

    report = snapshot.restore()

    assert 1 == report.backlog_after
    assert firsts("b0", "b1", "b2", "b3") == received(subscribe(), "b0", "b1", "b2", "b3")


def test_warnings(admin, namespace, topic, subscription, consumer, publish):
    """What a pin runs into is told, and a snapshot expires with its messages."""
    publish(b"1")
    admin.set_namespace_policy(namespace, "messageTTL", 7200)
    quota = {"limitSize": 1 << 30, "policy": "producer_request_hold"}
    admin.set_namespace_policy(namespace, "backlogQuota", quota)

    snapshot = Snapshot.create(subscription)

    assert snapshot.expires - snapshot.created <= timedelta(hours=2)
    assert any("expire after 7200 s" in warning for warning in snapshot.warnings)
    assert any("backlog quota" in warning for warning in snapshot.warnings)


def test_dry_run(admin, topic, subscription, consumer, publish):
    """A preview counts, and changes nothing."""
    for n in range(3):
        publish(f"{n}".encode())
    consumer.reconsume_later(consumer.receive(SOON))
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 2)
    snapshot = Snapshot.create(subscription)
    seek(subscription, "latest")

    report = snapshot.restore(dry_run=True)

    assert (True, 2, 1) == (report.dry_run, report.replayed, report.letters.reset)
    assert 0 == admin.backlog(topic, SUBSCRIPTION)
    assert 0 == admin.backlog(subscription.retry_letter_topic, SUBSCRIPTION)


def test_a_consumer_of_the_retry_topic_alone(client, subscription, consumer, publish):
    """That of a redrive, for example: it is not one of those that come back."""
    publish(b"1")
    consumer.reconsume_later(consumer.receive(SOON), delay=3600)
    snapshot = Snapshot.create(subscription)
    consumer.close()
    client.subscribe(
        subscription.retry_letter_topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared
    )

    assert 0 == snapshot.restore(dry_run=True).consumers


def test_another_topic(broker, topic, subscription, consumer, publish):
    """A snapshot is of one topic."""
    publish(b"1")
    snapshot = Snapshot.create(subscription)

    with pytest.raises(pr.SnapshotError, match="belongs to"):
        snapshot.restore(subscription_of(broker, f"{topic}-2"))


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "KeyShared", "Shared"])
def test_every_type(admin, topic, subscription, subscribe, publish, kind):
    """Consumers of every type that run get what was open, and go on."""
    consumer = subscribe(
        consumer_type=getattr(pulsar.ConsumerType, kind),
        initial_position=EARLIEST,
        enable_retry=False,
        dead_letter_policy=None,
    )
    for n in range(6):
        publish(f"{n}".encode(), partition_key=f"{n}")
    messages = [consumer.receive(SOON) for _ in range(6)]
    for message in messages:
        if message.data() in {b"1", b"3"}:
            consumer.acknowledge(message)
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 4)
    snapshot = Snapshot.create(subscription)

    snapshot.restore(grace=0.3)

    assert 4 == admin.backlog(topic, SUBSCRIPTION)
    found = {payload for payload, _ in received(consumer, "0", "2", "4", "5")}
    assert {b"0", b"2", b"4", b"5"} <= found
    drained(admin, topic)


def test_an_exclusive_consumer_is_in_the_way(client, cluster_parts, topic, publish):
    """Where nobody else can acknowledge, the error says who is to be stopped."""
    exclusive = client.subscribe(topic, SUBSCRIPTION, initial_position=EARLIEST)
    published = Position.of(publish(b"1"))
    place = EntryPlace(published.ledger, published.entry)

    with pytest.raises(pr.SeekError, match=r"Exclusive.*stop them"):
        acknowledge(*cluster_parts, topic, SUBSCRIPTION, {place: None})

    exclusive.close()
    acknowledge(*cluster_parts, topic, SUBSCRIPTION, {place: None})


@pytest.fixture
def cluster_parts(client: Any, subscription: Subscription) -> Any:
    """Give a client and the REST API."""
    with subscription.cluster.admin() as admin:
        yield client, admin

"""Moving a subscription with its letters, on a real broker."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

import pulsar
import pytest
import urllib3

import pulsar_retry as pr
from pulsar_retry.admin.position import Position
from pulsar_retry.admin.subscriptions import StoredEntry, Subscriptions
from pulsar_retry.admin.topics import Topics
from pulsar_retry.admin.transport import NotShownError
from pulsar_retry.replay import seek
from pulsar_retry.replay.ack_state import EntryPlace
from pulsar_retry.wire.properties import message_id_text
from support.consumer.filling import send_batch
from support.encrypting import key_files
from support.reading import SOON, SUBSCRIPTION
from support.replay.replaying import (
    consume,
    delivered,
    drained,
    firsts,
    pause_between,
    subscription_of,
    trim,
)
from support.waiting import eventually


def test_past_time(admin, topic, subscription, consumer, publish):
    """What was published since a time is delivered again; what was before is acknowledged."""
    publish(b"a1")
    publish(b"a2")
    when = pause_between()
    publish(b"b1")
    publish(b"b2")
    messages = {m.data(): m for m in (consumer.receive(SOON) for _ in range(4))}
    for name in (b"a1", b"b1"):  # and a2 and b2 stay in hand
        consumer.acknowledge(messages[name])
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 2)

    report = seek(subscription, when)

    assert (1, 1, 2) == (report.replayed, report.purged, report.backlog_after)
    assert firsts("b1", "b2") == delivered(consumer, "b1", "b2")
    drained(admin, topic)


def holding_back(client: pulsar.Client, topic: str) -> pulsar.Producer:
    """Return a producer that was given the message ``early``, and stores it at its next flush."""
    held = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    held.send_async(b"early", None)
    return held


@pytest.mark.parametrize("ledgers", [1, 2])
@pytest.mark.parametrize("late", [2, 3, 6, 8])
def test_messages_that_were_stored_late(
    admin, client, namespace, topic, subscription, consumer, late, ledgers
):
    """The broker, which looks as if all were in order, would pass over what is before them."""
    kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    admin.set_namespace_policy(namespace, "retention", kept)
    held = holding_back(client, topic)
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"old")
    when = pause_between()
    for number in range(8):
        if number == late:
            held.flush()
        if number == 5 and ledgers > 1:
            admin.unload(topic)
        producer.send(b"%d" % number)
    held.flush()
    consume(consumer, 10)
    drained(admin, topic)

    report = seek(subscription, when)

    assert (9, 0) == (report.replayed, report.purged)
    names = [str(number) for number in range(8)]
    assert firsts(*names, "early") == delivered(consumer, *names, "early")


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_message_in_chunks_before_a_late_one(
    client, topic, subscription, consumer, tmp_path, is_encrypted
):
    """Delivery begins with its first chunk, also if the command has no key for it."""
    keys = pulsar.CryptoKeyReader(*key_files(tmp_path))
    secret = {"encryption_key": "key", "crypto_key_reader": keys} if is_encrypted else {}
    held = holding_back(client, topic)
    producer = client.create_producer(
        topic, batching_enabled=False, chunking_enabled=True, **secret
    )
    old = Position.of(producer.send(b"old"))
    when = pause_between()
    producer.send(bytes(12_000_000))
    held.flush()

    report = seek(subscription, when, dry_run=True)

    assert f"{old.ledger}:{old.entry + 1}" in report.partitions[0].begin


def test_messages_that_arrive_while_a_seek_looks(
    admin, client, topic, subscription, consumer, monkeypatch
):
    """They are delivered, also if a late one is the last of them."""
    held = holding_back(client, topic)
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"old")
    when = pause_between()
    consume(consumer, 1)
    drained(admin, topic)
    find = Topics.message_id_at

    def after_others(self: Topics, *asked: Any) -> Position:
        producer.send(b"new")
        held.flush()
        return find(self, *asked)

    monkeypatch.setattr(Topics, "message_id_at", after_others)
    consumer.close()
    seek(subscription, when)

    assert 2 == admin.backlog(topic, SUBSCRIPTION)


def test_a_chunk_of_which_the_broker_does_not_say_when(
    client, topic, subscription, consumer, tmp_path, monkeypatch
):
    """It answers with an error if a chunk is compressed, and not at all to some; all goes on."""
    keys = pulsar.CryptoKeyReader(*key_files(tmp_path))
    held = holding_back(client, topic)
    producer = client.create_producer(topic, batching_enabled=False)
    secret = client.create_producer(topic, encryption_key="key", crypto_key_reader=keys)
    producer.send(b"old")
    when = pause_between()
    chunk = EntryPlace.of(Position.of(secret.send(b"chunk")))
    producer.send(b"new")
    held.flush()
    entry = Subscriptions.entry

    def refused(self: Subscriptions, name: str, position: Position) -> StoredEntry:
        if EntryPlace.of(position) == chunk:
            raise NotShownError(500, name, "Other exception")
        return entry(self, name, position)

    monkeypatch.setattr(Subscriptions, "entry", refused)

    report = seek(subscription, when, dry_run=True)

    assert str(chunk) in report.partitions[0].begin


@pytest.mark.parametrize("to", ["latest", datetime(2100, 1, 1, tzinfo=UTC), "2100-01-01T00:00Z"])
def test_purge(admin, topic, subscription, consumer, publish, to):
    """The end, and any time in the future, purge: messages and letters, not what comes later."""
    for name in (b"1", b"2", b"3"):
        publish(name)
    consumer.reconsume_later(consumer.receive(SOON))
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 2)

    report = seek(subscription, to)

    assert (2, 1) == (report.purged, report.letters.purged)
    for each in (topic, subscription.retry_letter_topic):
        drained(admin, each)
    publish(b"new")
    assert (b"new", 1) in delivered(consumer, "new")  # after what it had fetched, perhaps


def test_a_new_subscription(broker, client, topic, consumer, publish):
    """A subscription that is younger than the messages gets those that are still there."""
    publish(b"1")
    consumer.receive(SOON)
    theirs = client.subscribe(
        topic, "new", consumer_type=pulsar.ConsumerType.Shared, enable_retry=True
    )

    report = seek(subscription_of(broker, topic, "new"), "earliest")

    assert 1 == report.replayed
    assert firsts("1") == delivered(theirs, "1")


def test_message_id(admin, topic, subscription, consumer, publish):
    """A message id is the next message; without one of that id there is an error."""
    ids = [publish(name) for name in (b"1", b"2", b"3")]
    consume(consumer, 3)
    drained(admin, topic)

    report = seek(subscription, ids[1])

    assert 2 == report.replayed
    assert firsts("2", "3") == delivered(consumer, "2", "3")
    with pytest.raises(pr.SeekError, match="no message"):
        seek(subscription, Position(ids[0].ledger_id(), 77))


def test_message_in_a_batch(client, admin, topic, subscription, consumer):
    """Without batch index acknowledgement, those before it in its batch come, too."""
    send_batch(client, topic, 4)
    messages = consume(consumer, 4)
    drained(admin, topic)

    for _ in range(2):  # the broker writes positions in another way now
        seek(subscription, messages[2].message_id())
        assert firsts("0", "1", "2", "3") == delivered(consumer, "2", "3")


def test_message_in_chunks(client, admin, topic, subscription, consumer):
    """A message in chunks is the next one, too: it is delivered from its first chunk."""
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    for payload in (b"before", bytes(12_000_000), b"after"):
        producer.send(payload)
    messages = consume(consumer, 3)
    drained(admin, topic)

    seek(subscription, messages[1].message_id())

    assert firsts(bytes(12_000_000), "after") == delivered(consumer, "after", bytes(12_000_000))


@pytest.mark.parametrize("before", [0, 1], ids=["last chunk", "chunk in the middle"])
def test_the_id_of_a_chunk(client, admin, topic, subscription, consumer, before):
    """It stands for its message, which is delivered as a whole; only so its letter can go."""
    payload = os.urandom(12_000_000)
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    producer.send(b"before")
    last = Position.of(producer.send(payload))
    for _ in range(2):
        message = consumer.receive(SOON)
        if message.data() == payload:
            consumer.reconsume_later(message)
        else:
            consumer.acknowledge(message)
    drained(admin, topic)

    report = seek(subscription, f"{last.ledger}:{last.entry - before}")

    assert 1 == report.letters.replayed
    assert firsts(payload) == delivered(consumer, payload)


def test_partitions(admin, topic, subscription, client, consumer_of_partitions, publish):
    """All partitions move: to a time, and to a message's id and, elsewhere, its time."""
    names = [f"{n}" for n in range(12)]
    ids = {}
    for name in names:
        ids[name] = publish(name.encode(), partition_key=name)
        pause_between()
    consume(consumer_of_partitions, 12)
    for n in range(3):
        drained(admin, f"{topic}-partition-{n}")

    report = seek(subscription, ids["5"])
    assert firsts(*names[5:]) == delivered(consumer_of_partitions, *names[5:])
    assert 3 == len(report.partitions)

    # A busy broker may make a first ledger so late that the topic seems to have had another one.
    seek(subscription, timedelta(hours=1), partial_retention=True)
    assert firsts(*names) == delivered(consumer_of_partitions, *names)

    seek(subscription, "earliest")
    seek(subscription, "latest")
    for n in range(3):
        drained(admin, f"{topic}-partition-{n}")


@pytest.fixture
def consumer_of_partitions(admin, topic, subscription, subscribe) -> pr.Consumer:
    """Return a consumer of three partitions, and of three of letters."""
    admin.create_partitioned_topic(topic, 3)
    admin.create_partitioned_topic(subscription.retry_letter_topic, 3)
    return subscribe(
        initial_position=pulsar.InitialPosition.Earliest,
        dead_letter_policy=pr.DeadLetterPolicy(100),
        delay_levels="1h",
    )


def test_letters_of_partitions(
    admin, topic, subscription, consumer_of_partitions, publish, dead_letters
):
    """Letters in partitions of the retry topic lose to their originals in partitions."""
    for n in range(6):
        publish(f"{n}".encode(), partition_key=f"{n}")
    for _ in range(6):
        consumer_of_partitions.reconsume_later(consumer_of_partitions.receive(SOON))

    report = seek(subscription, "earliest")

    assert 6 == report.letters.replayed
    assert firsts(*"012345") == delivered(consumer_of_partitions, *"012345")
    for n in range(3):
        drained(admin, f"{subscription.retry_letter_topic}-partition-{n}")


def test_letter_of_a_replayed_message(admin, topic, subscription, consumer, publish):
    """A letter goes when its original comes again: each message is handled once, from 1."""
    for name in (b"1", b"2"):
        publish(name)
    for _ in range(2):
        consumer.reconsume_later(consumer.receive(SOON))

    report = seek(subscription, timedelta(minutes=5), partial_retention=True)

    assert (2, 0, 0) == (report.letters.replayed, report.letters.reset, report.letters.purged)
    assert firsts("1", "2") == delivered(consumer, "1", "2")
    drained(admin, subscription.retry_letter_topic)


def test_letter_whose_original_is_gone(admin, topic, subscription, consumer, publish):
    """It is kept, comes at once, and its attempts begin at 1."""
    publish(b"old", properties={"colour": "red"}, partition_key="k")
    consumer.reconsume_later(consumer.receive(SOON), properties={"why": "later"})
    trim(admin, topic)
    publish(b"new")

    report = seek(subscription, timedelta(hours=1), partial_retention=True)

    assert (1, 0) == (report.letters.reset, report.letters.replayed)
    messages = {m.data(): m for m in consume(consumer, 2)}
    old = messages[b"old"]
    assert 1 == pr.attempt_of(old)
    assert "k" == old.partition_key()
    assert {"colour": "red", "why": "later"}.items() <= old.properties().items()
    assert subscription.topic == pr.RetryProperties.of(old).real_topic
    drained(admin, subscription.retry_letter_topic)


def test_letters_with_a_schema(admin, client, topic, subscription, subscribe):
    """A letter that is published anew keeps its schema."""
    consumer = subscribe(
        initial_position=pulsar.InitialPosition.Earliest,
        schema=pulsar.schema.StringSchema(),
        dead_letter_policy=pr.DeadLetterPolicy(100),
    )
    client.create_producer(topic, schema=pulsar.schema.StringSchema()).send("tea")
    consumer.reconsume_later(consumer.receive(SOON), delay=3600)
    trim(admin, topic)

    report = seek(subscription, "earliest")

    assert 1 == report.letters.reset
    message = consumer.receive(SOON)
    assert ("tea", 1) == (message.value(), pr.attempt_of(message))


def test_letters_in_chunks(admin, client, topic, subscription, consumer):
    """A letter of several entries is acknowledged as a whole, and published anew as a whole."""
    content = b"x" * (6 << 20)
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    producer.send(content)
    consumer.reconsume_later(consumer.receive(SOON))

    report = seek(subscription, "earliest")
    assert 1 == report.letters.replayed
    drained(admin, subscription.retry_letter_topic)

    consumer.reconsume_later(consumer.receive(SOON))
    trim(admin, topic)
    report = seek(subscription, "earliest")
    assert 1 == report.letters.reset
    assert [(content, 1)] == delivered(consumer, content)
    drained(admin, subscription.retry_letter_topic)


@pytest.fixture
def big_letters(client, topic, subscription, tmp_path) -> Any:
    """Return a function that publishes letters in chunks, of an original that is gone."""
    keys = pulsar.CryptoKeyReader(*key_files(tmp_path))

    def publish(payload: bytes, *, encrypted: bool = False, **options: Any) -> None:
        secret = {"encryption_key": "key", "crypto_key_reader": keys} if encrypted else {}
        producer = client.create_producer(
            subscription.retry_letter_topic, chunking_enabled=True, **secret, **options
        )
        properties = {"REAL_TOPIC": topic, "REAL_SUBSCRIPTION": SUBSCRIPTION, "RECONSUMETIMES": "1"}
        producer.send(payload, properties=properties, deliver_after=timedelta(hours=1))
        producer.close()

    return publish


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("compression", ["NONE", "ZSTD"])
def test_a_first_letter_in_chunks(
    admin, subscription, subscribe, big_letters, partitions, compression
):
    """It is read from its first chunk, also if its chunks are the first entries of all."""
    if partitions:
        admin.create_partitioned_topic(subscription.retry_letter_topic, partitions)
    options = {"initial_position": pulsar.InitialPosition.Earliest, "delay_levels": "1h"}
    consumer = subscribe(dead_letter_policy=pr.DeadLetterPolicy(100), **options)
    payloads = [os.urandom(12_000_000), b"small", os.urandom(12_000_001)]
    for payload in payloads:
        big_letters(payload, compression_type=getattr(pulsar.CompressionType, compression))

    report = seek(subscription, timedelta(days=3), partial_retention=True)

    assert (3, 0, True) == (report.letters.reset, report.letters.unreadable, report.is_complete)
    assert firsts(*payloads) == delivered(consumer, *payloads)


@pytest.mark.parametrize("to", ["earliest", timedelta(days=3)])
def test_a_first_message_in_chunks_that_are_compressed(client, topic, subscription, consumer, to):
    """The broker cannot say when it was published, which a seek needs not know."""
    zipped = {"chunking_enabled": True, "compression_type": pulsar.CompressionType.ZLib}
    producer = client.create_producer(topic, batching_enabled=False, **zipped)
    payload = os.urandom(6_000_000)
    producer.send(payload)
    consume(consumer, 1)

    report = seek(subscription, to, partial_retention=True)

    assert report.partitions[0].reaches is None
    assert firsts(payload) == delivered(consumer, payload)


@pytest.mark.parametrize("kind", ["ZLib", "LZ4"])
def test_a_message_in_chunks_that_are_compressed(
    client, topic, subscription, consumer, monkeypatch, kind
):
    """The broker shows none of its chunks, so it is read to find its first one."""
    # It never answers a request for some chunks; see `Subscriptions.entry`.
    monkeypatch.setattr("pulsar_retry.admin.transport._TIMEOUT", urllib3.Timeout(10))
    compression = getattr(pulsar.CompressionType, kind)
    zipped = {"chunking_enabled": True, "compression_type": compression}
    producer = client.create_producer(topic, batching_enabled=False, **zipped)
    old = Position.of(producer.send(b"old"))
    stored = Position.of(producer.send(os.urandom(12_000_000)))

    report = seek(subscription, str(stored), dry_run=True)

    assert f"{old.ledger}:{old.entry + 1}" in report.partitions[0].begin


def test_encrypted_letters_in_chunks(admin, subscription, consumer, big_letters):
    """They stay; the others around them are moved."""
    payloads = [os.urandom(12_000_000), os.urandom(12_000_001)]
    big_letters(bytes(12_000_000), encrypted=True)
    big_letters(payloads[0])
    big_letters(bytes(12_000_000), encrypted=True)
    big_letters(payloads[1])

    report = seek(subscription, timedelta(days=3), partial_retention=True)

    assert 2 == report.letters.reset
    assert report.letters.unreadable >= 4
    assert firsts(*payloads) == delivered(consumer, *payloads)


def test_letter_of_an_older_message(admin, topic, subscription, consumer, publish):
    """A letter is acknowledged when its message was published before the time: so says Pub/Sub."""
    publish(b"old")
    consumer.reconsume_later(consumer.receive(SOON))
    when = pause_between()
    publish(b"new")

    report = seek(subscription, when)

    assert 1 == report.letters.purged
    assert firsts("new") == delivered(consumer, "new")
    drained(admin, subscription.retry_letter_topic)


def test_attempts_restart(admin, topic, subscription, consumer, publish):
    """Nacks before the seek are not counted after it."""
    publish(b"1")
    for _ in range(3):
        consumer.negative_acknowledge(consumer.receive(SOON), delay=0)
    message = consumer.receive(SOON)
    assert 4 == pr.attempt_of(message)

    seek(subscription, "earliest")

    assert firsts("1") == delivered(consumer, "1")


@pytest.fixture
def late(monkeypatch, admin, topic, subscribe, publish) -> Any:
    """Return a function that holds 20 messages, which are acknowledged as soon as it is moved."""
    reset = Subscriptions.reset

    def hold(*, acknowledged: bool, **options: Any) -> tuple[pr.Consumer, list[Any], list[Any]]:
        consumer = subscribe(
            initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=1, **options
        )
        for n in range(20):
            publish(f"{n}".encode())
        held = [consumer.receive(SOON) for _ in range(20)]
        calls: list[Any] = []

        def reset_and_acknowledge(self: Any, *where: Any) -> None:
            reset(self, *where)
            calls.append(where)
            if len(calls) == 1 and acknowledged:
                eventually(consumer.is_connected)
                for message in held:
                    consumer.acknowledge(message)
                drained(admin, topic)

        monkeypatch.setattr(Subscriptions, "reset", reset_and_acknowledge)
        return consumer, held, calls

    return hold


def test_late_acknowledgements(subscription, late):
    """What is acknowledged after the move, but was given out before it, gets letters."""
    consumer, _, calls = late(acknowledged=True)

    report = seek(subscription, "earliest")

    assert 1 == len(calls)
    assert 15 < report.letters.late <= 20
    assert firsts(*map(str, range(20))) == delivered(consumer, *map(str, range(20)))


def test_very_late_acknowledgements(admin, subscription, late):
    """So does what is still in hand when the time is over, whenever it is acknowledged."""
    consumer, held, _ = late(acknowledged=False)

    report = seek(subscription, "earliest", grace=0.3)
    for message in held:
        consumer.acknowledge(message)

    assert 15 < report.letters.late <= 20
    assert firsts(*map(str, range(20))) == delivered(consumer, *map(str, range(20)))
    drained(admin, subscription.topic)
    drained(admin, subscription.retry_letter_topic)


def test_late_acknowledgements_without_a_retry_topic(subscription, late):
    """Where there can be no letters, the topic is moved once more; what is later, is warned of."""
    consumer, _, calls = late(acknowledged=True, enable_retry=False, dead_letter_policy=None)

    report = seek(subscription, "earliest", grace=0.3)

    assert 2 == len(calls)
    assert any("there is no retry topic" in warning for warning in report.warnings)
    assert firsts(*map(str, range(20))) == delivered(consumer, *map(str, range(20)))


def test_without_grace(admin, topic, subscription, consumer, publish):
    """Nothing is waited for: all that was in hand gets letters, and comes twice at most."""
    for name in (b"1", b"2", b"3"):
        publish(name)
    for _ in range(3):
        consumer.receive(SOON)

    report = seek(subscription, "earliest", grace=0)

    assert 3 == report.letters.late
    names = [name for name, _ in delivered(consumer, "1", "2", "3")]
    assert {b"1", b"2", b"3"} == set(names)
    assert 6 >= len(names)
    drained(admin, topic)


def test_dry_run(admin, topic, subscription, consumer, publish):
    """A preview counts, and changes nothing."""
    for name in (b"1", b"2", b"3"):
        publish(name)
    consume(consumer, 2)
    consumer.reconsume_later(consumer.receive(SOON))
    drained(admin, topic)
    topics = (topic, subscription.retry_letter_topic)
    before = [admin.get(f"{t.replace('://', '/')}/internalStats")["cursors"] for t in topics]

    report = seek(subscription, "earliest", dry_run=True)

    assert (True, 3, 1) == (report.dry_run, report.replayed, report.letters.replayed)
    after = [admin.get(f"{t.replace('://', '/')}/internalStats")["cursors"] for t in topics]
    assert [marks(each) for each in before] == [marks(each) for each in after]
    assert [] == delivered(consumer)


def marks(cursors: Any) -> dict[str, tuple[str, str]]:
    """Return what each subscription has acknowledged."""
    return {
        name: (each["markDeletePosition"], each["individuallyDeletedMessages"])
        for name, each in cursors.items()
    }


def test_retention_is_shorter(admin, topic, subscription, consumer, publish):
    """A time that retention does not reach is an error that says how far it does."""
    publish(b"old")
    consume(consumer, 1)
    began = datetime.now(UTC)
    # A topic whose only ledger is as old as itself has lost nothing.
    eventually(lambda: datetime.now(UTC) - began > timedelta(seconds=6))
    trim(admin, topic)
    publish(b"new")
    consume(consumer, 1)
    drained(admin, topic)

    with pytest.raises(pr.RetentionError, match=r"retention: 0 min, 0 MB\)"):
        seek(subscription, began - timedelta(hours=1))
    assert [] == delivered(consumer)

    warned = seek(subscription, began - timedelta(hours=1), dry_run=True)
    assert 1 == len(warned.warnings)
    assert "--partial" in warned.warnings[0]  # without it, the seek itself is refused
    assert warned.partitions[0].reaches >= began

    seek(subscription, began - timedelta(hours=1), partial_retention=True)
    assert firsts("new") == delivered(consumer, "new")


def test_retention_that_is_long_enough(admin, namespace, topic, subscription, consumer, publish):
    """With retention, what all have acknowledged comes again, although its ledger is closed."""
    policy = {"retentionTimeInMinutes": 120, "retentionSizeInMB": -1}
    admin.set_namespace_policy(namespace, "retention", policy)
    publish(b"old")
    consume(consumer, 1)
    drained(admin, topic)
    eventually(lambda: admin.has_stored_acks(topic, SUBSCRIPTION))
    admin.unload(topic)
    publish(b"new")
    consume(consumer, 1)

    seek(subscription, "1h")

    assert firsts("old", "new") == delivered(consumer, "old", "new")


def test_no_subscription(admin, topic, subscription, publish):
    """A subscription that is not there is named."""
    with pytest.raises(pr.SeekError, match="no topic"):
        seek(subscription, "earliest")
    publish(b"1")
    with pytest.raises(pr.SeekError, match=f"no subscription '{SUBSCRIPTION}'"):
        seek(subscription, "earliest")


@pytest.mark.parametrize(
    ("kind", "warns"), [("Exclusive", True), ("Failover", True), ("KeyShared", False)]
)
def test_every_type(admin, topic, subscription, subscribe, publish, kind, warns):
    """Consumers of every type come back; where they may acknowledge cumulatively, it warns."""
    consumer = subscribe(
        consumer_type=getattr(pulsar.ConsumerType, kind),
        initial_position=pulsar.InitialPosition.Earliest,
        enable_retry=False,
        dead_letter_policy=None,
    )
    for name in ("1", "2", "3"):
        publish(name.encode(), partition_key=name)
    consume(consumer, 3)
    drained(admin, topic)

    report = seek(subscription, "earliest")

    assert (3, 1) == (report.replayed, report.consumers)
    assert warns is any("cumulatively" in warning for warning in report.warnings)
    assert firsts("1", "2", "3") == delivered(consumer, "1", "2", "3")


@pytest.mark.parametrize(
    ("name", "match"), [("{}-partition-0", "is a partition"), ("non-{}", "keeps no messages")]
)
def test_what_cannot_be_moved(broker, topic, name, match):
    """One partition alone cannot, nor can what is not stored."""
    with pytest.raises(pr.SeekError, match=match):
        seek(subscription_of(broker, name.format(topic)), "earliest")


def test_a_retry_topic_of_another_dialect(subscription, subscribe):
    """Letters under another name are not left behind in silence."""
    subscribe(naming="tdmq-2.6.1")

    report = seek(subscription, "earliest", dry_run=True)

    assert any("set naming to tdmq-2.6.1" in warning for warning in report.warnings)


def test_letters_of_another_topic(admin, namespace, topic, subscription, client, publish):
    """A consumer of two topics has one retry topic: the other's letters stay as they are."""
    other = f"{topic}-z"
    consumer = client.subscribe(
        [topic, other],
        SUBSCRIPTION,
        consumer_type=pulsar.ConsumerType.Shared,
        enable_retry=True,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    publish(b"mine")
    publish(b"other", topic=other)
    for _ in range(2):
        consumer.reconsume_later(consumer.receive(SOON), delay=3600)

    report = seek(subscription, "latest")

    assert (1, 1) == (report.letters.purged, report.letters.kept)
    assert 1 == admin.backlog(subscription.retry_letter_topic, SUBSCRIPTION)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_letters_in_a_batch(client, admin, topic, subscription, consumer, publish, order):
    """A letter whose original is gone is delivered, also if its neighbour is replayed."""
    replayed = message_id_text(publish(b"replayed"))
    consume(consumer, 1)
    drained(admin, topic)
    retry = subscription.retry_letter_topic
    producer = client.create_producer(
        retry, batching_enabled=True, batching_max_publish_delay_ms=10_000
    )
    consumer.close()
    letters = [(b"replayed", replayed), (b"alone", "0:1:-1")]
    for payload, origin in (letters[each] for each in order):
        properties = {
            "REAL_TOPIC": topic,
            "REAL_SUBSCRIPTION": SUBSCRIPTION,
            "ORIGIN_MESSAGE_ID": origin,
            "RECONSUMETIMES": "1",
        }
        producer.send_async(payload, lambda *_: None, properties=properties)
    producer.flush()

    seek(subscription, "earliest")

    with client.subscribe(
        topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared, enable_retry=True
    ) as again:
        came = {name for name, _ in delivered(again, "replayed", "alone")}
    assert {b"replayed", b"alone"} == came

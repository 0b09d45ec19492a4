"""Applications copy properties: a letter's are believed only where they can be the reader's own."""

from __future__ import annotations

from typing import Any

import attrs
import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.replay import Subscription, seek
from support.pull.handling import Notes, fails
from support.push.receiving import no_content
from support.reading import SOON, SUBSCRIPTION, dead_letter_topic, read_all, retry_topic
from support.replay.redriving import Dead, received
from support.waiting import eventually

#: Properties of letters of the first stage that the second stage's letters have as well.
NAMES = ("REAL_TOPIC", "REAL_SUBSCRIPTION", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "RECONSUMETIMES")


@pytest.fixture
def copies(subscribe, publish, client, topic) -> Any:
    """Return a function that has a first stage copy messages that it retried, to a topic."""

    def copies(target: str, count: int = 1) -> list[dict[str, str]]:
        client.create_producer(target).close()
        first = subscribe(f"{topic}-first", dead_letter_policy=pr.DeadLetterPolicy(9))
        publish(topic=f"{topic}-first")
        for _ in range(3):
            first.reconsume_later(first.receive(SOON), delay=0)
        message = first.receive(SOON)
        producer = client.create_producer(target, batching_enabled=False)
        for number in range(count):
            producer.send(b"%d" % number, properties=message.properties())
        producer.close()
        first.acknowledge(message)
        assert set(NAMES) <= message.properties().keys()
        return [message.properties()] * count

    return copies


def begins_anew(letter: pulsar.Message, topic: str) -> bool:
    """Tell whether a letter says that it is of *topic*, and of the first attempt."""
    properties = letter.properties()
    return (
        (topic, SUBSCRIPTION) == (properties["REAL_TOPIC"], properties["REAL_SUBSCRIPTION"])
        and properties.get("RETRY_TOPIC", retry_topic(topic)) == retry_topic(topic)
        and properties.get("RECONSUMETIMES", "1") == "1"
        and properties["ORIGIN_MESSAGE_ID"] == properties["ORIGIN_MESSAGE_IDY_TIME"]
    )


@pytest.mark.parametrize("kind", ["plain", "batched", "chunked", "partitioned", "list"])
def test_the_next_stage_begins_anew(subscribe, copies, client, admin, topic, kind) -> None:
    """Its letters are its own, however its messages come."""
    if kind == "partitioned":
        admin.create_partitioned_topic(topic, 2)
    (copied,) = copies(f"{topic}-copied")
    second = subscribe([topic, f"{topic}-x"] if kind == "list" else topic)
    options: dict[str, Any] = {"batching_enabled": kind == "batched"}
    if kind == "chunked":
        options["chunking_enabled"] = True
    producer = client.create_producer(topic, **options)
    size = 6 << 20 if kind == "chunked" else 1
    for number in range(3):
        producer.send_async(b"%d" % number * size, None, properties=copied)
    producer.flush()

    for each in [second.receive(SOON) for _ in range(3)]:
        second.reconsume_later(each, delay=0)
    letters = [second.receive(SOON) for _ in range(3)]

    assert all(begins_anew(each, topic) for each in letters)
    assert 3 == len({each.properties()["ORIGIN_MESSAGE_ID"] for each in letters})
    for each in letters:
        second.dead_letter(each, reason="invalid")
    dead = read_all(client, dead_letter_topic(topic), 3)
    assert all(begins_anew(each, topic) for each in dead)


def test_letters_of_other_clients_consumers_keep_their_count(subscribe, client, topic) -> None:
    """They copy names, as Java's does; what comes through our retry topic is ours all the same."""
    second = subscribe()
    names = {
        "REAL_TOPIC": f"{topic}-first",
        "REAL_SUBSCRIPTION": "s1",
        "ORIGIN_MESSAGE_ID": "1:2:3",
    }
    producer = client.create_producer(retry_topic(topic))
    producer.send(b"x", properties={**names, "RECONSUMETIMES": "1"})

    second.reconsume_later(second.receive(SOON), delay=0)
    letter = second.receive(SOON).properties()
    assert (topic, SUBSCRIPTION) == (letter["REAL_TOPIC"], letter["REAL_SUBSCRIPTION"])
    assert ("2", False) == (letter["RECONSUMETIMES"], letter["ORIGIN_MESSAGE_ID"] == "1:2:3")


def test_the_next_stage_rejects_at_once(subscribe, copies, client, topic) -> None:
    """The dead letter says nothing of the stage before, and no count."""
    second = subscribe()
    copies(topic)
    second.dead_letter(second.receive(SOON), reason="invalid")

    (letter,) = read_all(client, dead_letter_topic(topic), 1)
    assert begins_anew(letter, topic)
    assert "RECONSUMETIMES" not in letter.properties()
    assert "1" == letter.properties()["FAILURE_ATTEMPT"]


@pytest.mark.parametrize("handler", ["def", "async def"])
def test_a_subscriber_counts_from_one(start, copies, client, topic, handler) -> None:
    """All of its attempts, with its first backoff first."""
    client.subscribe(topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared).close()
    copies(topic)
    notes = Notes(fails)
    delays: list[int] = []

    async def handle(message: pulsar.Message) -> None:
        notes(message)

    class Backoff(pr.Immediate):
        def delay(self, attempt: int) -> float:
            delays.append(attempt)
            return 0.0

    policy = pr.RetryPolicy(max_attempts=3, backoff=Backoff())
    start(notes if handler == "def" else handle, retry_policy=policy)

    (letter,) = read_all(client, dead_letter_topic(topic), 1)
    assert [1, 2, 3] == delays
    assert 3 == len(notes.seen)
    assert ("3", "3") == tuple(
        letter.properties()[name] for name in ("RECONSUMETIMES", "FAILURE_ATTEMPT")
    )
    assert topic == letter.properties()["REAL_TOPIC"]


def test_a_worker_on_a_dead_letter_topic_counts_from_one(subscribe, start, publish, client, topic):
    """The count is that of the subscription whose letters they are."""
    first = subscribe()
    publish()
    first.reconsume_later(first.receive(SOON), delay=0)
    first.dead_letter(first.receive(SOON), reason="invalid")
    notes = Notes(fails)
    dlq = dead_letter_topic(topic)
    start(notes, dlq, redelivery="letters")

    (letter,) = read_all(client, dead_letter_topic(dlq), 1)
    assert 3 == len(notes.seen)
    assert (dlq, "3") == (letter.properties()["REAL_TOPIC"], letter.properties()["RECONSUMETIMES"])


def test_a_redrive_brings_back_what_the_next_stage_rejected(subscribe, copies, dead) -> None:
    """To it, and not to the stage before; so does one that names the subscription."""
    second = subscribe()
    copies(dead.topic)
    for options in ({"subscription": SUBSCRIPTION}, {}, {"topic": dead.topic}):
        second.dead_letter(second.receive(SOON), reason="invalid")
        done = dead.redrive(**options).run()
        assert {dead.retry: 1} == done.targets
    (message,) = received(second, 1)
    assert begins_anew(message, dead.topic)


@pytest.mark.parametrize("is_known", [True, False])
def test_copied_names_are_not_believed_by_a_redrive(subscribe, dead: Dead, is_known) -> None:
    """Those of another client's dead letters, say: the name of the topic decides, or nobody."""
    other = f"{dead.topic}-other"
    subscribe(other)
    subscribe()
    dlq = dead if is_known else attrs.evolve(dead, topic=f"{dead.topic}-gone")
    dlq.create("keep")
    dlq.send(b"x", dead.properties(1, REAL_TOPIC=other))

    done = dlq.redrive().run()

    assert ({dead.retry: 1} if is_known else {}) == done.targets
    assert is_known or "--topic and --subscription" in done.problems[0]


def test_a_topic_with_a_name_of_its_own_needs_both(dead: Dead, client) -> None:
    """Only its letters of this owner are redriven."""
    consumer = dead.subscribe()
    graveyard = attrs.evolve(dead, topic=f"{dead.topic}-graveyard")
    name = graveyard.dlq
    graveyard.create("keep")
    graveyard.send(b"own", dead.properties(1))
    graveyard.send(b"nobody's", {})
    graveyard.send(b"another's", dead.properties(2, REAL_SUBSCRIPTION="other"))

    done = graveyard.redrive(any_topic=True).run()
    assert {"no_target": 3} == done.left
    assert any(f"it names other of {dead.topic}" in each for each in done.problems)
    options = {"topic": dead.topic, "subscription": SUBSCRIPTION, "any_topic": True}
    done = pr.replay.Redrive(name, cluster=dead.cluster, **options).run()

    assert ({dead.retry: 2}, {"other_subscription": 1}) == (done.targets, done.left)
    for message in received(consumer, 2):
        assert dead.topic == message.properties()["REAL_TOPIC"]
        assert SUBSCRIPTION == message.properties()["REAL_SUBSCRIPTION"]


def test_attempts_that_are_kept_at_the_origin_are_the_owners(dead, client) -> None:
    """The names stay with them, so that no other subscription believes the count."""
    others = client.subscribe(
        dead.topic, "other", consumer_type=pulsar.ConsumerType.Shared, enable_retry=True
    )
    own = client.subscribe(
        dead.topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared, enable_retry=True
    )
    dead.fill(1)
    dead.redrive("origin", keep_attempts=True).run()

    retried = []
    for each in (own, others):
        each.reconsume_later(each.receive(SOON), delay=0)
        letter = each.receive(SOON).properties()
        retried.append((letter["RECONSUMETIMES"], letter["REAL_SUBSCRIPTION"]))
    assert [("4", SUBSCRIPTION), ("1", "other")] == retried


@pytest.mark.parametrize(("target", "calls"), [("earliest", 3), ("latest", 0)])
def test_a_seek_moves_what_the_next_stage_retries(
    subscribe, copies, client, subscription: Subscription, topic, target, calls
) -> None:
    """Its letters are its own, so each message comes once, or not at all."""
    second = subscribe()
    copies(topic, 3)
    for _ in range(3):
        second.reconsume_later(second.receive(SOON), delay=3600)
    second.close()

    seek(subscription, target, grace=0)

    again = subscribe()
    seen = [again.receive(SOON) for _ in range(calls)]
    assert calls == len({each.data() for each in seen})
    with pytest.raises(pulsar.Timeout):
        again.receive(1000)


def test_push_tells_copies_apart(client, copies, receiver, topic) -> None:
    """Three messages made of one have three ids, and are delivered for the first time."""
    client.subscribe(topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared).close()
    copies(topic, 3)
    receiver.say = no_content
    policy = pr.DeadLetterPolicy(5)
    with pr.push.Dispatcher(
        client, topic, SUBSCRIPTION, receiver.url, dead_letter_policy=policy, ack_deadline=600
    ):
        receiver.wait_for(3)
    bodies = [each.json() for each in receiver.requests]
    assert 3 == len({each["message"]["messageId"] for each in bodies})
    assert {1} == {each["deliveryAttempt"] for each in bodies}
    eventually(lambda: len(receiver.requests) == 3)

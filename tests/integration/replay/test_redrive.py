"""Dead letters come back to work, whole and once, and only those that are meant."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from datetime import UTC, datetime

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.admin.client import AdminClient
from pulsar_retry.consumer.handoff.handoff import HandOff
from pulsar_retry.consumer.handoff.sending import Flight
from pulsar_retry.replay import Filter, Redriven, Subscription
from pulsar_retry.replay.reading import read_letters
from pulsar_retry.replay.redriving.report import Became
from pulsar_retry.replay.redriving.source import consumer_of, ends
from pulsar_retry.replay.redriving.states import DONE, STAYS, LetterStates, Source
from support.reading import SUBSCRIPTION
from support.replay.redriving import Dead, received
from support.waiting import eventually


def test_letters_go_to_the_retry_topic_of_the_subscription_that_failed(dead, client) -> None:
    """It gets them as new work, and no other subscription of the topic sees anything."""
    consumer = dead.subscribe()
    other = client.subscribe(dead.topic, "shipping")
    client.create_producer(dead.topic).send(b"tea", properties={"shop": "7"}, partition_key="k")
    consumer.dead_letter(consumer.receive(60_000), reason="invalid", error=ValueError("no amount"))
    other.acknowledge(other.receive(60_000))

    done = dead.redrive().run()

    assert (1, {}, True) == (done.redriven, done.left, done.is_complete)
    assert {dead.retry: 1} == done.targets
    (message,) = received(consumer, 1)
    properties = message.properties()
    assert (b"tea", "k", 1) == (message.data(), message.partition_key(), pr.attempt_of(message))
    assert {"shop": "7", "REDRIVE_COUNT": "1", "REDRIVE_ID": done.job}.items() <= properties.items()
    assert not [name for name in properties if name.startswith("FAILURE")]
    eventually(lambda: dead.backlog() == 0)
    client.create_producer(dead.topic).send(b"next")
    assert b"next" == other.receive(60_000).data()


def test_letters_go_to_their_origin_for_all_subscriptions(dead, client) -> None:
    """They are new messages there: nothing says any more which subscription has failed."""
    consumer, other = dead.subscribe(), client.subscribe(dead.topic, "shipping")
    dead.create("keep")
    dead.fill(1)

    done = dead.redrive("origin").run()

    assert {dead.topic: 1} == done.targets
    for each in (consumer, other):
        (message,) = received(each, 1)
        ours = {"DEDUPE_ID", "REDRIVE_COUNT", "REDRIVE_ID"}
        assert {"number", *ours} == set(message.properties())


@pytest.mark.parametrize(
    "published", ["FAILURE_PUBLISH_TIME", "CloudPubSubDeadLetterSourceTopicPublishTime"]
)
def test_the_age_begins_anew(dead, published) -> None:
    """Also if the failure is kept: its first publication would make the message too old at once."""
    dead.send(b"tea", dead.properties(0, **{published: "2026-01-01T00:00:00Z"}))
    attempts: list[int] = []

    def handle(message: pulsar.Message) -> None:
        attempts.append(pr.attempt_of(message))
        if len(attempts) == 1:
            raise TimeoutError

    policy = pr.RetryPolicy(max_age=600, backoff="immediate")
    with dead.client.subscriber(dead.topic, SUBSCRIPTION, handle, retry_policy=policy) as worker:
        dead.redrive(keep_failure=True).run()
        eventually(lambda: len(attempts) == 2)
    assert (1, 0) == (worker.result().retried, worker.result().dead_lettered)


def test_letters_go_elsewhere(dead, client) -> None:
    """A topic by its name; the failure is told there when it is asked for."""
    dead.create("keep")
    dead.fill(1)
    elsewhere = f"{dead.topic}-workbench"
    consumer = client.subscribe(elsewhere, "people")

    done = dead.redrive(elsewhere, keep_failure=True, keep_attempts=True).run()

    assert {elsewhere: 1} == done.targets
    (message,) = received(consumer, 1)
    assert "even" == message.properties()["FAILURE_REASON"]
    assert "3" == message.properties()["RECONSUMETIMES"]


@pytest.mark.parametrize("target", ["retry", "origin", "nowhere"])
def test_letters_are_not_published_where_nobody_would_get_them(dead, target) -> None:
    """A topic without a subscription drops what is published to it; the letters stay."""
    dead.create("keep")
    dead.fill(3)

    done = dead.redrive(target).run()

    assert (0, {"no_target": 3}, False) == (done.redriven, done.left, done.is_complete)
    assert "does not exist" in done.problems[0]
    assert 3 == dead.backlog()
    assert {dead.dlq} == set(dead.admin.topics(dead.topic.split("//")[1].rsplit("/", 1)[0]))


def test_only_what_is_meant_comes_back(dead) -> None:
    """The rest stays, and is there for the next redrive."""
    consumer = dead.subscribe()
    dead.fill(60)
    half_past = datetime(2026, 1, 1, 0, 30, tzinfo=UTC)

    done = dead.redrive(where=Filter(reason="odd", since=half_past)).run()

    assert (15, {"filtered": 45}) == (done.redriven, done.left)
    numbers = {int(each.data()) for each in received(consumer, 15)}
    assert set(range(31, 60, 2)) == numbers
    eventually(lambda: dead.backlog() == 45)
    rest = dead.redrive(where=Filter(properties={"number": "4"})).run()
    assert 1 == rest.redriven
    received(consumer, 1)


def facts_of(dead: Dead) -> object:
    """Return what a dry run must not change: subscriptions, backlogs, cursors, topics."""
    topics = dead.admin.topics(dead.topic.split("//")[1].rsplit("/", 1)[0])
    internal = dead.cluster.admin().topics.internal_stats(dead.dlq)
    stats = dead.admin.stats(dead.dlq)["subscriptions"]
    return (
        topics,
        {name: (each["msgBacklog"], each["msgOutCounter"]) for name, each in stats.items()},
        internal["cursors"],
        internal["entriesAddedCounter"],
        dead.admin.stats(dead.retry)["msgInCounter"],
    )


@pytest.mark.parametrize("subscriptions", [[], ["keep"]])
def test_a_dry_run_changes_nothing(dead, subscriptions) -> None:
    """It says what would happen, by reason, and the broker looks as it did before."""
    dead.create(*subscriptions)
    consumer = dead.client.subscribe(
        dead.topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared, enable_retry=True
    )
    dead.fill(5)
    before = facts_of(dead)

    done = dead.redrive(dry_run=True).run()

    eventually(lambda: facts_of(dead) == before)
    assert (True, 5, {dead.retry: 5}) == (done.dry_run, done.redriven, done.targets)
    assert [("even", 3), ("odd", 2)] == [(each.reason, each.count) for each in done.groups]
    assert [] == received(consumer, 0)


def test_a_dry_run_leaves_out_what_is_done(dead) -> None:
    """Letters that are acknowledged are not counted, though the broker may still have them."""
    consumer = dead.subscribe()
    dead.fill(6)
    dead.redrive(where=Filter(reason="odd")).run()

    assert 3 == dead.redrive(dry_run=True).run().redriven
    received(consumer, 3)


def test_what_dies_again_and_again_stays(dead) -> None:
    """A bound ends the round trip, whoever counted."""
    consumer = dead.subscribe()
    dead.send(b"tea", dead.properties(0))
    for count in ("1", "2"):
        assert 1 == dead.redrive(max_redrives=2).run().redriven
        message = consumer.receive(60_000)
        assert count == message.properties()["REDRIVE_COUNT"]
        consumer.dead_letter(message, reason="invalid")

    done = dead.redrive(max_redrives=2).run()

    assert (0, {"redriven_too_often": 1}) == (done.redriven, done.left)


def test_letters_that_their_topic_refuses_stay(dead) -> None:
    """The report says how many, and why."""
    dead.subscribe()
    dead.fill(3)
    dead.admin.terminate(dead.retry)

    done = dead.redrive().run()

    assert (0, {"refused": 3}, False) == (done.redriven, done.left, done.is_complete)
    assert "TopicTerminated" in done.problems[0]
    assert 3 == dead.backlog()


def test_a_cancelled_redrive_goes_on(dead) -> None:
    """What is dead-lettered meanwhile is no part of it, and what is left is the next one's."""
    consumer, count = dead.subscribe(), 200  # more than come at once after a pause of seconds
    dead.fill(count)
    redrive = dead.redrive(rate=10)
    first = redrive.run(lambda so_far: so_far.redriven > 2 and redrive.cancel())

    assert ("cancelled", False) == (first.stopped, first.is_complete)
    assert count - first.redriven == dead.backlog()
    redrive = dead.redrive()
    redrive.run(lambda _: None)
    received(consumer, count)
    eventually(lambda: dead.backlog() == 0)


def test_a_letter_stays_what_it_is(dead, client) -> None:
    """Payload of any size or none, key, ordering key and event time."""
    consumer = dead.subscribe()
    big = bytes(range(256)) * 25_000  # more than a message may have: in chunks
    options = {"partition_key": "k", "ordering_key": "o", "event_timestamp": 1234}
    dead.send(big, dead.properties(0), **options)
    dead.send(None, dead.properties(1))

    assert 2 == dead.redrive().run().redriven

    messages = {each.properties()["number"]: each for each in received(consumer, 2)}
    whole, none = messages["0"], messages["1"]
    assert big == whole.data()
    assert ("k", "o", 1234) == (
        whole.partition_key(),
        whole.ordering_key(),
        whole.event_timestamp(),
    )
    assert none.has_null_value()


def test_a_letter_in_chunks_stays(dead) -> None:
    """It was read, so it does not make the redrive incomplete."""
    dead.subscribe()
    for number, payload in enumerate([b"first", bytes(12_000_000), b"last"]):
        dead.send(payload, dead.properties(number))

    done = dead.redrive(where=Filter(reason="even")).run()

    assert (2, {"filtered": 1}, True) == (done.redriven, done.left, done.is_complete)


def test_a_letter_that_is_being_published_is_the_next_one_s(dead, monkeypatch) -> None:
    """It does not count as unreadable because only its first chunks were there."""
    monkeypatch.setattr("pulsar_retry.replay.redriving.run._ON_ITS_WAY", 1.0)
    dead.subscribe()
    dead.fill(1)
    dead.send(bytes(12_000_000), dead.properties(1))
    last = ends(dead.cluster.admin(), [dead.dlq])[dead.dlq]

    with monkeypatch.context() as patch:
        begun = {dead.dlq: last.before}
        patch.setattr("pulsar_retry.replay.redriving.redrive.ends", lambda *_: begun)
        done = dead.redrive().run()

    assert (1, {}, True) == (done.redriven, done.left, done.is_complete)
    assert 1 == dead.redrive().run().redriven


def test_lost_acknowledgements_are_sent_again(dead) -> None:
    """Also of letters in chunks and in batches; what stays is not touched."""
    dead.send(b"stays", dead.properties(0))
    dead.send(bytes(12_000_000), dead.properties(1))
    dead.send(bytes(12_000_001), dead.properties(2))
    dead.fill(3, batching_enabled=True)
    admin, states = dead.cluster.admin(), LetterStates()
    source = Source(admin, dead.client, "keep", ends(admin, [dead.dlq]))
    for raw, _, place in read_letters(dead.client, admin, [dead.dlq], "keep"):
        states[place] = STAYS if raw.data() == b"stays" or raw.length() == 12_000_000 else DONE
    options = {"verb": "redrive", "job": "1", "by": "me", "rate": 100.0}

    with consumer_of(admin, dead.client, dead.dlq, "keep", **options) as consumer:
        source.acknowledge_again(consumer, states)
        eventually(lambda: source.unsettled(dead.dlq, states).done == 0)
    assert [b"stays", 12_000_000] == [
        raw.data() if raw.length() < 10 else raw.length()
        for raw, _, _ in read_letters(dead.client, admin, [dead.dlq], "keep")
    ]


@pytest.mark.parametrize("some", [{"where": Filter(reason="odd")}, {"limit": 2}])
def test_letters_that_stay_with_their_batch_are_named(dead, some) -> None:
    """The broker acknowledges only whole batches, so what is redriven of one is still there."""
    dead.subscribe().close()
    dead.create("keep")
    dead.fill(5, batching_enabled=True, batching_max_publish_delay_ms=10_000)

    done = dead.redrive(**some).run()

    assert (2, 2) == (done.redriven, done.left.get("with_batch"))
    assert 2 + done.left.get("filtered", 0) == done.read
    assert not done.is_complete
    assert "acknowledgmentAtBatchIndexLevelEnabled" in str(done.problems)
    rest = dead.client.subscribe(dead.dlq, "keep")
    assert 5 == len({rest.receive(60_000).data() for _ in range(5)})


def test_a_role_without_the_broker_s_settings_is_told_that_letters_may_stay(
    dead, monkeypatch
) -> None:
    """That is no failure: perhaps the broker acknowledges single letters of a batch."""

    def forbidden(_: AdminClient) -> dict[str, str]:
        raise pr.AdminForbiddenError(403, "configuration", "no right")

    monkeypatch.setattr(AdminClient, "broker_configuration", forbidden)
    dead.subscribe().close()
    dead.create("keep")
    dead.fill(3, batching_enabled=True, batching_max_publish_delay_ms=10_000)

    done = dead.redrive(limit=1).run()

    assert done.is_complete
    assert "1 letters of batches of which others stay may be taken again" in str(done.problems)


def test_only_letters_that_came_are_acknowledged_again(dead) -> None:
    """A redrive that is cancelled within a batch has not seen the rest of it."""
    dead.create("keep")
    dead.fill(3, batching_enabled=True, batching_max_publish_delay_ms=10_000)
    admin, states = dead.cluster.admin(), LetterStates()
    source = Source(admin, dead.client, "keep", ends(admin, [dead.dlq]))
    _, _, first = next(read_letters(dead.client, admin, [dead.dlq], "keep"))
    assert 0 == first.batch
    states[first] = DONE
    options = {"verb": "redrive", "job": "1", "by": "me", "rate": 100.0}

    with consumer_of(admin, dead.client, dead.dlq, "keep", **options) as consumer:
        source.acknowledge_again(consumer, states)

    rest = dead.client.subscribe(dead.dlq, "keep")
    came = {rest.receive(60_000).data() for _ in range(2)}
    assert {b"1", b"2"} & came


def test_one_of_several_subscriptions_has_to_be_named(dead) -> None:
    """The letters of the other are not touched."""
    consumer = dead.subscribe()
    dead.create("keep", "audit")
    dead.fill(2)

    with pytest.raises(pr.RedriveError, match=r"several subscriptions: audit, keep"):
        dead.redrive().run()
    with pytest.raises(pr.RedriveError, match="has no subscription people; it has: audit, keep"):
        dead.redrive(dlq_subscription="people").run()
    assert 2 == dead.redrive(dlq_subscription="audit").run().redriven

    received(consumer, 2)
    assert (0, 2) == (dead.backlog("audit"), dead.backlog("keep"))


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_subscription_that_somebody_uses_is_left_alone(
    dead, client, monkeypatch, partitions
) -> None:
    """Its consumer would take letters that are then neither here nor there; it is named."""
    monkeypatch.setattr("pulsar_retry.replay.redriving.source._BUSY_PATIENCE", 0.1)
    dead.create("keep", partitions=partitions)
    client.subscribe(
        dead.dlq, "keep", consumer_type=pulsar.ConsumerType.Shared, consumer_name="a-browser"
    )

    with pytest.raises(
        pr.RedriveError, match=r"subscription keep: the consumer a-browser of .* since"
    ):
        dead.redrive().run()


def test_two_operators(dead, monkeypatch) -> None:
    """The second one reads whose job it is, since when, and how far it is; also in a dry run."""
    monkeypatch.setattr("pulsar_retry.replay.redriving.source._BUSY_PATIENCE", 0.1)
    dead.subscribe()
    dead.fill(50)
    first = dead.redrive(rate=10, by="ada")
    said = rf"ada runs redrive {first.job} since 2.*, about \d+ letters are left"
    told: list[str] = []

    def second(so_far: Redriven) -> None:
        if so_far.redriven and not told:
            told.extend(dead.redrive(dry_run=True).run().problems)
            with pytest.raises(pr.RedriveError, match=said):
                dead.redrive(by="grace").run()
            first.cancel()

    assert "cancelled" == first.run(second).stopped
    assert re.search(said, told[0])


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_slow_redrive_fetches_little_ahead(dead, partitions) -> None:
    """The chunks of a letter come together: pulsar-client acknowledges what stays incomplete."""
    dead.subscribe()
    dead.create("keep", partitions=partitions)
    dead.fill(200)
    slow = dead.redrive(rate=3)
    sent: list[int] = []

    def look(so_far: Redriven) -> None:
        if so_far.redriven >= 3 and not sent:
            with dead.cluster.admin() as admin:
                each = [admin.topics.stats(name) for name in admin.topics.partition_names(dead.dlq)]
            readers = [one["subscriptions"]["keep"]["consumers"][0] for one in each]
            sent.append(sum(one["msgOutCounter"] for one in readers))
            slow.cancel()

    slow.run(look)
    assert 3 <= sent[0] <= 80


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_redrive_that_stands_still(dead, monkeypatch, partitions) -> None:
    """Its consumer is opened again: pulsar-client acknowledges what stays incomplete for a minute.

    What comes again is neither published nor counted again.
    """
    monkeypatch.setattr("pulsar_retry.replay.redriving.source._MOST_AHEAD", 8)
    monkeypatch.setattr("pulsar_retry.replay.redriving.run.IN_FLIGHT", 3)
    monkeypatch.setattr("pulsar_retry.replay.redriving.run._TURN", 0.5)
    opened, hand_on, is_again = itertools.count(1), HandOff.hand_on, threading.Event()

    def count(*arguments, **options):
        if next(opened) == 3:
            is_again.set()
        return consumer_of(*arguments, **options)

    def late(self: HandOff, flight: Flight) -> None:
        def go_on() -> None:
            is_again.wait(60)
            hand_on(self, flight)

        threading.Thread(target=go_on).start()

    monkeypatch.setattr("pulsar_retry.replay.redriving.redrive.consumer_of", count)
    monkeypatch.setattr(HandOff, "hand_on", late)
    consumer = dead.subscribe()
    dead.create("keep", partitions=partitions)
    dead.fill(7)
    dead.send(bytes(12_000_000), dead.properties(7))
    dead.fill(5)

    done = dead.redrive().run()

    assert is_again.is_set()
    assert (13, {}, True) == (done.redriven, done.left, done.is_complete)
    received(consumer, 13)
    assert 0 == dead.backlog()


def test_what_became_of_them(dead) -> None:
    """Those that were handled, those that wait or are in hand, and those that are dead again."""
    consumer = dead.subscribe()
    dead.fill(6)
    looks = []

    def work(so_far: Redriven) -> None:
        looks.append(so_far.became)
        if so_far.became is None or len(looks) > 20:
            return
        with contextlib.suppress(pulsar.Timeout):
            message = consumer.receive(300)
            number = int(message.data())
            if number < 3:
                consumer.acknowledge(message)
            elif number < 5:
                consumer.dead_letter(message, reason="again")
            else:
                consumer.reconsume_later(message, delay=3600)
            return
        redrive.cancel()

    redrive = dead.redrive(wait=600)
    done = redrive.run(work)

    assert Became(handled=3, waiting=1, dead=2) == done.became
    assert (6, True) == (done.redriven, done.is_complete)
    assert {f"subscription {SUBSCRIPTION} of {dead.topic}": 6} == done.owners


def test_what_becomes_of_them_at_their_origin(dead, client) -> None:
    """The subscription counts that they were dead letters of."""
    consumer, other = dead.subscribe(), client.subscribe(dead.topic, "shipping")
    dead.fill(2)

    done = dead.redrive("origin").run()

    assert Became(handled=0, waiting=2, dead=0) == done.became
    received(other, 2)
    received(consumer, 2)


@pytest.mark.parametrize("to", ["retry", "origin"])
def test_letters_that_nobody_reads_are_not_watched(dead, to, monkeypatch) -> None:
    """The report says soon for whom they wait."""
    monkeypatch.setattr("pulsar_retry.replay.redriving.redrive._ALONE", 1.0)
    dead.subscribe().close()
    dead.fill(2)
    looks = []

    done = dead.redrive(to, wait=600).run(lambda so_far: looks.append(so_far.became))

    place = {"retry": dead.retry, "origin": dead.topic}[to]
    (problem,) = done.problems
    assert f"no consumer is connected to the subscription {SUBSCRIPTION} of {place}" == problem
    assert Became(handled=0, waiting=2, dead=0) == done.became
    assert (True, {done.became}) == (done.is_complete, set(looks) - {None})


def test_letters_are_watched_while_their_consumer_connects_again(dead) -> None:
    """Between two connections it is not connected for a moment."""
    dead.subscribe().close()
    dead.fill(2)
    consumers = []

    def work(so_far: Redriven) -> None:
        if so_far.became is not None and not consumers:
            consumers.append(dead.subscribe())
            received(consumers[0], 2)

    done = dead.redrive(wait=600).run(work)

    assert Became(handled=2, waiting=0, dead=0) == done.became
    assert () == done.problems


@pytest.mark.parametrize("step", ["unsettled", "left"])
def test_an_error_after_letters_were_redriven_is_part_of_the_report(
    dead, monkeypatch, step
) -> None:
    """The counts are not lost, and nobody takes the redrive for a complete one."""

    def fail(*_: object) -> None:
        raise pr.RedriveError("the subscription keep no longer exists")

    monkeypatch.setattr(Source, step, fail)
    dead.subscribe()
    dead.fill(3)

    done = dead.redrive().run()

    assert (3, "refused", False) == (done.redriven, done.stopped, done.is_complete)
    assert {dead.retry: 3} == done.targets
    assert "the subscription keep no longer exists" in done.problems


def test_an_error_before_any_letter_was_redriven_is_raised(dead, monkeypatch) -> None:
    """There is nothing to report."""

    def fail(*_: object) -> None:
        raise pr.AdminError(None, "stats", "nothing answers")

    monkeypatch.setattr(Source, "left", fail)
    dead.subscribe()
    dead.fill(3)

    with pytest.raises(pr.AdminError, match="nothing answers"):
        dead.redrive(where=Filter(reason=["none"])).run()


def test_a_topic_without_a_subscription_gets_one(dead) -> None:
    """It begins at the earliest letter that is there."""
    consumer = dead.subscribe()
    dead.create()
    dead.fill(3)

    assert 3 == dead.redrive().run().redriven

    received(consumer, 3)
    assert {"pulsar-retry"} == set(dead.admin.stats(dead.dlq)["subscriptions"])


def test_a_topic_that_is_not_there(dead) -> None:
    """It is not made by looking."""
    with pytest.raises(pr.RedriveError, match="there is no topic"):
        dead.redrive(dry_run=True).run()


def test_a_subscription_is_a_source(dead) -> None:
    """It knows its letters' topics, whatever they are called."""
    consumer = dead.subscribe()
    dead.fill(1)
    named = Subscription(dead.cluster, dead.topic, SUBSCRIPTION)

    assert 1 == pr.replay.Redrive(named).run().redriven

    received(consumer, 1)


@pytest.mark.parametrize(
    "letter",
    [
        {"REAL_TOPIC": "{topic}", "ORIGIN_MESSAGE_ID": "(7,8,-1,-1)"},
        {"REAL_TOPIC": "{topic}-partition-0", "ORIGIN_MESSAGE_ID": "(7,8,0,-1)"},
        {"REAL_TOPIC": "{topic}", "REAL_SUBSCRIPTION": "billing", "ORIGIN_MESSAGE_IDY_TIME": "7:8"},
        {"RETRY_TOPIC": "{topic}-billing-RETRY", "DELAY": "3", "RECONSUMETIMES": "17"},
        {"CloudPubSubDeadLetterSourceDeliveryCount": "5"},
        {},
    ],
    ids=["cpp", "cpp-partition", "java", "tdmq", "pubsub", "bare"],
)
def test_letters_of_any_client_come_back(dead, letter) -> None:
    """What they do not say is in the name of the topic; what tells of the failure is left out."""
    consumer = dead.subscribe()
    properties = {name: text.format(topic=dead.topic) for name, text in letter.items()}
    dead.send(b"tea", {**properties, "shop": "7"})

    assert 1 == dead.redrive().run().redriven

    (message,) = received(consumer, 1)
    assert "7" == message.properties()["shop"]
    assert not [each for each in message.properties() if "kafka" in each or "Cloud" in each]
    assert 1 == pr.attempt_of(message)


def test_the_clients_own_dead_letters_come_back(dead, client) -> None:
    """pulsar-client's own policy writes what it writes; the retry topic is another consumer's."""
    bare = pulsar.Client(dead.broker.service_url)
    plain = bare.subscribe(
        dead.topic,
        SUBSCRIPTION,
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(
            max_redeliver_count=1, dead_letter_topic=dead.dlq, initial_subscription_name="keep"
        ),
    )
    client.create_producer(dead.topic).send(b"tea")

    def is_dead() -> bool:
        with contextlib.suppress(pulsar.Timeout):
            plain.negative_acknowledge(plain.receive(300))
        return dead.cluster.admin().topics.exists(dead.dlq) and dead.backlog() == 1

    eventually(is_dead)
    bare.close()
    consumer = dead.subscribe()

    assert 1 == dead.redrive().run().redriven

    assert [b"tea"] == [each.data() for each in received(consumer, 1)]


NAME = "büro/1 a*"


def test_a_subscription_with_an_odd_name(dead) -> None:
    """The broker's statistics write its name in another way, under which it is found."""
    consumer = dead.subscribe()
    dead.create(NAME)
    dead.fill(3)
    browser = dead.client.subscribe(dead.dlq, NAME, consumer_type=pulsar.ConsumerType.Shared)
    done = browser.receive(60_000)
    browser.acknowledge(done)
    browser.close()
    letters = list(read_letters(dead.client, dead.cluster.admin(), [dead.dlq], NAME))
    assert 2 == len(letters)
    assert done.data() not in {each.raw.data() for each in letters}

    assert 2 == dead.redrive(dlq_subscription=NAME).run().redriven

    received(consumer, 2)


def test_a_limit_is_one(dead) -> None:
    """The first so many; then the same command takes the next."""
    consumer = dead.subscribe()
    dead.fill(10)
    for first in (0, 4):
        done = dead.redrive(limit=4).run()
        assert (4, "limit", True) == (done.redriven, done.stopped, done.is_complete)
        numbers = [int(each.data()) for each in received(consumer, 4)]
        assert list(range(first, first + 4)) == sorted(numbers)
    assert 2 == dead.redrive(limit=4).run().redriven

"""Where letters go: dialects, old names, several topics, partitions."""

from __future__ import annotations

import uuid
from contextlib import suppress

import pulsar
import pytest

import pulsar_retry as pr
from support.reading import SOON, read_all, receive_all
from support.waiting import eventually

SHARED = pulsar.ConsumerType.Shared
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@pytest.mark.parametrize(
    ("naming", "retry", "dead_letter"),
    [
        (pr.Naming.PULSAR, "orders-billing-RETRY", "orders-billing-DLQ"),
        (pr.Naming.TDMQ_2_9_2, "orders-billing-RETRY", "orders-billing-DLQ"),
        (pr.Naming.TDMQ_2_7_2, "billing-RETRY", "billing-DLQ"),
        (pr.Naming.TDMQ_2_6_1, "billing-retry", "billing-dlq"),
    ],
)
def test_each_dialect_has_its_names(
    subscribe, publish, admin, namespace, naming, retry, dead_letter
):
    """What exists on the broker afterwards is what the dialect says."""
    base = f"persistent://{namespace}"
    consumer = subscribe(f"{base}/orders", naming=naming, dead_letter_policy=pr.DeadLetterPolicy(1))
    publish(topic=f"{base}/orders")

    consumer.reconsume_later(consumer.receive(SOON), delay=0)
    consumer.reconsume_later(consumer.receive(SOON), level=1)

    assert sorted([f"{base}/orders", f"{base}/{retry}", f"{base}/{dead_letter}"]) == (
        admin.topics(namespace)
    )


def test_names_of_namespaces_are_no_patterns(subscribe, publish, admin, namespace):
    """Looking for old names is done by a pattern, in which a hyphen or a dot means itself."""
    hyphened = f"{namespace}-eu.west_1"
    admin.create_namespace(hyphened)
    try:
        topic = f"persistent://{hyphened}/orders"
        admin.create_topic(f"persistent://{hyphened}/billing-DLQ")
        consumer = subscribe(topic, dead_letter_policy=pr.DeadLetterPolicy(0))
        publish(topic=topic)

        consumer.reconsume_later(consumer.receive(SOON), delay=0)

        assert admin.topics(hyphened) == sorted(
            [topic, f"{topic}-billing-RETRY", f"persistent://{hyphened}/billing-DLQ"]
        )
        consumer.close()
    finally:
        with suppress(OSError):  # some brokers fail, and delete it
            admin.delete_namespace(hyphened)


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize(("old", "other"), [("RETRY", "DLQ"), ("DLQ", "RETRY")])
def test_old_names_are_used_where_they_exist(
    subscribe, publish, admin, namespace, topic, old, other, partitions
):
    """Each of the two is looked up by itself, partitioned or not, and nothing else is created."""
    existing = f"persistent://{namespace}/billing-{old}"
    if partitions:
        admin.create_partitioned_topic(existing, partitions)
    else:
        admin.create_topic(existing)

    consumer = subscribe(dead_letter_policy=pr.DeadLetterPolicy(1))
    publish()
    consumer.reconsume_later(consumer.receive(SOON), delay=0)
    consumer.reconsume_later(consumer.receive(SOON), delay=0)

    names = {name.split("-partition-")[0] for name in admin.topics(namespace)}
    assert {topic, existing, f"{topic}-billing-{other}"} == names
    if not partitions:  # the look-up left no subscription behind
        expected = {"billing"} if old == "RETRY" else {"pulsar-retry"}
        assert expected == set(admin.stats(existing)["subscriptions"])


@pytest.mark.parametrize("partitions", [0, 2])
def test_where_everything_is_made_by_hand(
    broker, client, publish, admin, namespace, topic, partitions
):
    """A broker that makes no topics and subscriptions says all the same that an old DLQ exists."""
    dead = f"persistent://{namespace}/billing-DLQ"
    for each, subscription in (
        (topic, "billing"),
        (f"{topic}-billing-RETRY", "billing"),
        (dead, "pulsar-retry"),
    ):
        if partitions:
            admin.create_partitioned_topic(each, partitions)
        client.subscribe(each, subscription, SHARED).close()
    for policy, allowed in (
        ("autoTopicCreation", "allowAutoTopicCreation"),
        ("autoSubscriptionCreation", "allowAutoSubscriptionCreation"),
    ):
        admin.set_namespace_policy(namespace, policy, {allowed: False})
    eventually(lambda: _refuses_subscriptions(broker, topic))
    before = set(admin.topics(namespace))
    consumer = client.subscribe(
        topic, "billing", SHARED, enable_retry=True, dead_letter_policy=pr.DeadLetterPolicy(0)
    )
    publish()
    consumer.reconsume_later(consumer.receive(SOON))
    kept = client.subscribe(dead, "pulsar-retry", SHARED)
    assert b"order" == kept.receive(SOON).data()
    assert before == set(admin.topics(namespace))


def _refuses_subscriptions(broker, topic):
    """Tell whether the broker makes no subscription for a consumer any more."""
    client = pulsar.Client(broker.service_url, operation_timeout_seconds=2, logger=QUIET)
    try:
        client.subscribe(topic, f"probe-{uuid.uuid4()}", SHARED).unsubscribe()
    except pulsar.Timeout:
        return True
    finally:
        client.close()
    return False


def test_names_of_the_users_own_are_taken_as_they_are(subscribe, publish, admin, namespace, topic):
    """Given names win, short ones are completed, and the policy object stays as it was."""
    base = f"persistent://{namespace}"
    admin.create_topic(f"{base}/billing-RETRY")
    policy = pr.DeadLetterPolicy(1, f"{base}/again", f"{namespace}/lost")

    consumer = subscribe(dead_letter_policy=policy)
    publish()
    consumer.reconsume_later(consumer.receive(SOON), delay=0)
    consumer.reconsume_later(consumer.receive(SOON), delay=0)

    assert {topic, f"{base}/again", f"{base}/lost", f"{base}/billing-RETRY"} == set(
        admin.topics(namespace)
    )
    assert pr.DeadLetterPolicy(1, f"{base}/again", f"{namespace}/lost") == policy


def test_partitioned_letter_topics_work(subscribe, publish, admin, topic, client):
    """Delays hold on a partitioned retry topic too, also where Java's would not be Shared."""
    admin.create_partitioned_topic(f"{topic}-billing-RETRY", 2)
    admin.create_partitioned_topic(f"{topic}-billing-DLQ", 2)
    consumer = subscribe(dead_letter_policy=pr.DeadLetterPolicy(1))
    for number in range(4):
        publish(b"%d" % number)

    for _ in range(8):
        consumer.reconsume_later(consumer.receive(SOON), level=1)

    assert [] == receive_all(consumer)
    assert 4 == len(read_all(client, f"{topic}-billing-DLQ", 4))


def test_one_partition_can_be_consumed_by_name(subscribe, publish, admin, topic):
    """Subscribing to a single partition works and says the logical topic."""
    admin.create_partitioned_topic(topic, 2)
    consumer = subscribe(f"{topic}-partition-1")
    publish(topic=f"{topic}-partition-1")

    consumer.reconsume_later(consumer.receive(SOON), delay=0)

    assert topic == consumer.receive(SOON).properties()["REAL_TOPIC"]


def test_letters_wait_for_a_consumer_that_starts_late(subscribe, publish, client, topic):
    """The retry topic is read from its start, whatever the initial position of the topic."""
    client.create_producer(f"{topic}-billing-RETRY").send(b"early", {"RECONSUMETIMES": "1"})

    consumer = subscribe(initial_position=pulsar.InitialPosition.Latest)

    assert b"early" == consumer.receive(SOON).data()

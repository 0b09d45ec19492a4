"""What `pulsar-retry doctor` concludes from what it has read."""

from __future__ import annotations

from types import SimpleNamespace

import attrs
import pytest

import pulsar_retry as pr
from pulsar_retry.ops import doctor, settings
from pulsar_retry.replay import Cluster, Subscription

TOPIC = "persistent://public/default/orders"
#: What a broker with Pulsar's own settings answers.
ON = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 0}
NO_QUOTA = {"destination_storage": {"limitSize": -1, "limitTime": -1, "policy": "x"}}
IDLE = {
    "deleteWhileInactive": True,
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 60,
}
CAUGHT_UP = IDLE | {"inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up"}


def quota(policy, **limits):
    """Return the quotas of a topic that has one."""
    return {TOPIC: {"destination_storage": {"limitSize": -1, "policy": policy} | limits}}


def tracker(version, name="BucketDelayedDeliveryTrackerFactory", batches="true"):
    """Return what is found with a delay tracker."""
    found = {
        "delayedDeliveryTrackerFactoryClassName": f"org.apache.pulsar.broker.delayed.{name}",
        "acknowledgmentAtBatchIndexLevelEnabled": batches,
    }
    return settings.of_broker(found, version)


@pytest.mark.parametrize(
    ("findings", "verdicts"),
    [
        (settings.of_delays(TOPIC, ON), ["ok"]),
        (settings.of_delays(TOPIC, None), ["unknown"]),
        (settings.of_delays(TOPIC, ON | {"active": False}), ["error"]),
        (settings.of_delays(TOPIC, ON | {"tickTime": 5000}), ["warning"]),
        (settings.of_delays(TOPIC, ON | {"maxDeliveryDelayInMillis": 60_000}), ["warning"]),
        (settings.of_delays(TOPIC, ON | {"maxDeliveryDelayInMillis": 7_200_000}), ["ok"]),
        (settings.of_quota({}), []),
        (settings.of_quota({TOPIC: NO_QUOTA, "b": None}), ["ok"]),
        (settings.of_quota(quota("consumer_backlog_eviction", limitSize=9)), ["error"]),
        (settings.of_quota(quota("consumer_backlog_eviction", limitTime=9)), ["error"]),
        (settings.of_quota(quota("producer_request_hold", limitSize=9)), ["warning"]),
        (settings.of_inactivity(TOPIC, IDLE, kept=True), []),
        (settings.of_inactivity(TOPIC, IDLE, kept=False), ["error"]),
        (settings.of_inactivity(TOPIC, IDLE | {"deleteWhileInactive": False}, kept=False), []),
        (settings.of_inactivity(TOPIC, CAUGHT_UP, kept=True), ["warning"]),
        (settings.of_expiry("public/default", 0), ["ok"]),
        (settings.of_expiry("public/default", 5), ["error"]),
        (settings.of_expiry("public/default", None), ["unknown"]),
        (settings.of_broker(None, "4.2.4"), ["unknown"]),
        (tracker("4.2.3"), ["ok", "error"]),
        (tracker("4.2.4"), ["ok"]),
        (tracker("4.0.12"), ["ok", "error"]),
        (tracker("4.0.13-SNAPSHOT"), ["ok"]),
        (tracker("4.1.9"), ["ok", "error"]),
        (tracker("5.0.1"), ["ok"]),
        (tracker("unknown"), ["ok", "error"]),
        (tracker("4.2.3", "InMemoryDelayedDeliveryTrackerFactory", "false"), ["warning"]),
        (settings.of_creation([], []), ["ok"]),
        (settings.of_creation(["allowAutoTopicCreation"], []), ["ok"]),
        (settings.of_creation(["allowAutoTopicCreation"], [TOPIC]), ["error"]),
        (settings.of_creation([], [], ["allowAutoTopicCreation"]), ["unknown"]),
        (settings.of_creation(["allowAutoTopicCreation"], [TOPIC], ["x"]), ["error"]),
        (settings.of_publishing("a/b", must_encrypt=False, must_have_schema=False), []),
        (
            settings.of_publishing("a/b", must_encrypt=True, must_have_schema=True),
            ["warning", "warning"],
        ),
    ],
)
def test_what_settings_mean(findings, verdicts):
    """What loses letters is an error, what delays or refuses them a warning."""
    assert verdicts == [each.verdict for each in findings]


@pytest.mark.parametrize(
    ("found", "waiting", "verdict"),
    [
        (None, 5, "unknown"),
        ({}, 5, "ok"),
        ({"managedLedgerMaxUnackedRangesToPersist": "10000"}, 10_000, "ok"),
        ({"managedLedgerMaxUnackedRangesToPersist": "10000"}, 10_001, "warning"),
        ({"delayedDeliveryFixedDelayDetectionLookahead": "50000"}, 49_999, "ok"),
        ({"delayedDeliveryFixedDelayDetectionLookahead": "50000"}, 50_000, "warning"),
        ({"delayedDeliveryFixedDelayDetectionLookahead": "0"}, 50_000, "ok"),
    ],
)
def test_what_many_waiting_letters_mean(found, waiting, verdict):
    """Some come again after a restart, or wait behind letters of one delay."""
    assert [verdict] == [each.verdict for each in settings.of_waiting(found, waiting)]


def missing(topic, **_):
    """Answer as for a topic that does not exist."""
    raise pr.AdminNotFoundError(404, topic, "not found")


def test_a_topic_that_a_role_may_not_read_hides_no_fault_of_others():
    """Each topic is asked for by the checks that are about it."""

    def stats(topic, **_):
        if topic.endswith("-DLQ"):
            raise pr.AdminForbiddenError(403, topic, "not allowed")
        return {"subscriptions": {}}

    admin = SimpleNamespace(topics=SimpleNamespace(stats=stats, partitions=lambda _: 0))
    it = doctor._Look(Subscription(Cluster(), TOPIC, "billing"), admin, None)
    for check in (doctor._topic, doctor._retry_topic):
        assert "error" == list(check(it))[-1].verdict
    with pytest.raises(pr.AdminForbiddenError):
        list(doctor._dead_letter_topic(it))


@pytest.mark.parametrize(
    ("allowed", "verdict"), [(None, "unknown"), (True, "ok"), (False, "error")]
)
def test_what_a_role_may_not_ask_the_broker_is_not_known(allowed, verdict):
    """Unless the namespace has settings of its own."""

    def refuse():
        raise pr.AdminForbiddenError(403, "brokers/configuration/runtime", "not allowed")

    own = {
        f"auto{kind}Creation": {f"allowAuto{kind}Creation": allowed}
        for kind in ("Topic", "Subscription")
        if allowed is not None
    }
    admin = SimpleNamespace(
        broker_configuration=refuse,
        namespaces=SimpleNamespace(policy=lambda _, name: own.get(name)),
        topics=SimpleNamespace(stats=missing, partitioned_stats=missing),
    )
    it = doctor._Look(Subscription(Cluster(), TOPIC, "billing"), admin, None)

    (found,) = doctor._publishing(it)
    assert ("creation", verdict) == (found.check, found.verdict)


def test_a_result_is_a_value():
    """So `--json` shows it."""
    (found,) = settings.of_creation([], [])
    assert "automatic" == attrs.asdict(found)["text"]

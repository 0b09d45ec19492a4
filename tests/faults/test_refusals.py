"""A retry or dead-letter topic refuses letters for a while; no message is lost."""

from __future__ import annotations

from http import HTTPMethod

import attrs
import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.standalone import Standalone
from support.brokers.hostile import HOSTILE
from support.faults.handing import EARLIEST, dead_letter, manage, nack, publish, reject, retry
from support.faults.ledger import patiently
from support.reading import dead_letter_topic, retry_topic
from support.waiting import eventually

pytestmark = pytest.mark.timeout(600)

COUNT = 20

#: The number of retries that the policy of `handing.subscribe` allows.
RETRIES = 2


class Terminated:
    """The topic is terminated. An operator deletes it later, and the broker creates it again."""

    name = "terminated, then deleted"

    def begin(self, stage, topic):
        """Terminate it."""
        stage.admin.terminate(topic)

    def end(self, stage, topic):
        """Delete it."""
        stage.admin.delete_topic(topic)


class Deleted:
    """The topic is deleted, and no topic may be created for a while."""

    name = "deleted, while no topic may be created"

    def begin(self, stage, topic):
        """Forbid new topics, and delete this one."""
        self._allow(stage, topic, allowed=False)
        stage.admin.delete_topic(topic)

    def end(self, stage, topic):
        """Allow new topics."""
        self._allow(stage, topic, allowed=True)

    @staticmethod
    def _allow(stage, topic, *, allowed):
        namespace = topic.partition("://")[2].rpartition("/")[0]
        value = {"allowAutoTopicCreation": allowed, "topicType": "non-partitioned"}
        stage.admin.set_namespace_policy(namespace, "autoTopicCreation", value)


class Full:
    """The topic has exceeded its backlog quota."""

    def __init__(self, policy):
        self.name = f"over its backlog quota (`{policy}`)"
        self._policy = policy

    def begin(self, stage, topic):
        """Set a quota that the backlog exceeds."""
        self._limit(stage, topic, 1)

    def end(self, stage, topic):
        """Set a quota that the backlog does not exceed."""
        self._limit(stage, topic, 1 << 40)

    def _limit(self, stage, topic, size):
        quota = {"limitSize": size, "limitTime": -1, "policy": self._policy}
        stage.admin.set_topic_policy(topic, "backlogQuota", quota)


class Schema:
    """The topic enforces a schema, and letters have no schema."""

    name = "that enforces a schema, which letters do not have"
    _enforced = "schemaValidationEnforced"

    def begin(self, stage, topic):
        """Give it a schema, enforce the schema, and disconnect the present producers."""
        name = topic.partition("://")[2]
        schema = {"type": "STRING", "schema": "", "properties": {}}
        stage.admin.call(HTTPMethod.POST, f"schemas/{name}/schema", schema)
        stage.admin.set_topic_policy(topic, self._enforced, value=True)
        eventually(lambda: self._refuses(stage, topic))
        stage.admin.unload(topic)

    def end(self, stage, topic):
        """Stop enforcing the schema."""
        stage.admin.set_topic_policy(topic, self._enforced, value=False)

    @staticmethod
    def _refuses(stage, topic):
        try:
            stage.client.create_producer(topic).close()
        except pulsar.PulsarException:
            return True
        return False


class Fenced:
    """An exclusive producer takes the topic over, for more attempts than a message has retries."""

    name = "taken over by an exclusive producer"
    times = RETRIES + 2

    def begin(self, stage, topic):
        """Create a producer that excludes all others."""
        fencing = pulsar.ProducerAccessMode.ExclusiveWithFencing
        self._usurper = stage.client.create_producer(topic, access_mode=fencing)

    def end(self, _stage, _topic):
        """Close this producer."""
        self._usurper.close()


FULL = [Full("producer_exception"), Full("producer_request_hold")]
REFUSALS = [Terminated(), Deleted(), *FULL, Schema(), Fenced()]


@pytest.fixture(scope="module")
def own_broker():
    """Give a broker that checks its quotas every second instead of every minute."""
    settings = {**HOSTILE, "backlogQuotaCheckIntervalInSeconds": 1}
    with Standalone(fast_start=True, settings=settings) as standalone:
        yield standalone


def is_refused(stage, caplog, times):
    """Return whether the topic has refused a letter, or the letters of one message *times* times.

    If a caller waits for the letter, its message is delivered once more after each refusal.
    Otherwise the letter is published again, and the refusal is logged.
    """
    if "a letter was not published" in caplog.text:
        return True
    counts = stage.ledger.counts()
    asked = counts["retried"] or counts["delivered"]
    return any(count > times for count in asked.values())


def refused(own_stage, fault, way, refusal, topic, caplog):
    """Refuse letters for a while, and return the account when every message has ended."""
    with pr.Client(
        own_stage.url,
        operation_timeout_seconds=10,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    ) as client:
        stage = attrs.evolve(own_stage, client=client)
        publish(client, stage.topic, stage.ledger, COUNT)
        with stage.working(way, letter_send_timeout=3):
            eventually(lambda: topic in stage.admin.topics(stage.namespace))
            # Without this subscription, the topic has no backlog that could exceed a quota.
            patiently(
                lambda: client.subscribe(topic, "slow", initial_position=EARLIEST).close(),
                pulsar.Timeout,
            )
            eventually(stage.is_drained)
            refusal.begin(stage, topic)

            def until_refused():
                publish(client, stage.topic, stage.ledger, 1)
                return is_refused(stage, caplog, getattr(refusal, "times", 1))

            eventually(until_refused)
            refusal.end(stage, topic)
            fault.is_over()
        return stage.account()


@pytest.mark.parametrize("way", [retry, manage])
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.name)
def test_a_retry_topic_that_refuses(own_stage, fault, way, refusal, caplog):
    """Letters are requested again until they are stored; no message becomes a dead letter."""
    account = refused(own_stage, fault, way, refusal, retry_topic(own_stage.topic), caplog)

    assert account.dead == 0
    fault.survived(
        f"retry topic {refusal.name}",
        account,
        bound=account.sent,
    )


@pytest.mark.parametrize("refusal", [*FULL, Fenced()], ids=lambda refusal: refusal.name)
def test_a_dead_letter_topic_that_refuses(own_stage, fault, refusal, caplog):
    """The same happens to calls of `dead_letter`."""
    dead = dead_letter_topic(own_stage.topic)
    account = refused(own_stage, fault, dead_letter, refusal, dead, caplog)

    fault.survived(
        f"dead-letter topic {refusal.name}",
        account,
        bound=account.sent,
    )


@pytest.mark.parametrize("way", [nack, reject])
def test_a_verdict_whose_dead_letter_is_refused(own_stage, fault, way, caplog):
    """The dead letter is published again; the message is not redelivered."""
    account = refused(own_stage, fault, way, Fenced(), dead_letter_topic(own_stage.topic), caplog)

    # If a fenced producer publishes, the broker closes its connection. This happens once.
    assert max(own_stage.ledger.counts()["delivered"].values()) <= 2
    fault.survived(
        "dead-letter topic taken over by an exclusive producer, with nacks or a subscriber",
        account,
        bound=account.sent,
    )

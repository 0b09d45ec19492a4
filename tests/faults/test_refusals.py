"""Topics of letters that refuse them for a while: the originals come again until they do not."""

from __future__ import annotations

from functools import partial
from http import HTTPMethod

import attrs
import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.standalone import Standalone
from support.brokers.hostile import HOSTILE
from support.faults.handing import (
    EARLIEST,
    dead_letter,
    dead_letter_topic,
    manage,
    nack,
    publish,
    reject,
    retry,
    retry_topic,
)
from support.reading import eventually

pytestmark = pytest.mark.timeout(280)

COUNT = 20

#: The retries that `handing.subscribe` grants.
RETRIES = 2

TOLD = "the caller is told; the originals come again, later and later"
AGAIN = "letters are published again, later and later; messages are not redelivered for that"

UNDER_WAY = "letters under way"


class Terminated:
    """The topic was ended. An operator deletes it, and it is made anew."""

    name = "terminated, then deleted"

    def begin(self, stage, topic):
        """End it."""
        stage.admin.terminate(topic)

    def end(self, stage, topic):
        """Delete it."""
        stage.admin.delete_topic(topic)


class Deleted:
    """The topic is deleted, and nobody may make one for a while."""

    name = "deleted, and not to be made anew at first"

    def begin(self, stage, topic):
        """Delete it and forbid a new one."""
        self._allow(stage, topic, allowed=False)
        stage.admin.delete_topic(topic)

    def end(self, stage, topic):
        """Let it be made."""
        self._allow(stage, topic, allowed=True)

    @staticmethod
    def _allow(stage, topic, *, allowed):
        namespace = topic.partition("://")[2].rpartition("/")[0]
        value = {"allowAutoTopicCreation": allowed, "topicType": "non-partitioned"}
        stage.admin.set_namespace_policy(namespace, "autoTopicCreation", value)


class Full:
    """The topic may hold nothing more, as with a full disk."""

    def __init__(self, policy):
        self.name = f"full, with `{policy}`"
        self._policy = policy

    def begin(self, stage, topic):
        """Set a quota that what is in it exceeds."""
        self._limit(stage, topic, 1)

    def end(self, stage, topic):
        """Have room for more."""
        self._limit(stage, topic, 1 << 40)

    def _limit(self, stage, topic, size):
        quota = {"limitSize": size, "limitTime": -1, "policy": self._policy}
        stage.admin.set_topic_policy(topic, "backlogQuota", quota)


class Schema:
    """The topic insists on a schema, and letters of bytes have none."""

    name = "of a schema that letters do not have"
    _enforced = "schemaValidationEnforced"

    def begin(self, stage, topic):
        """Give it a schema, have it enforced, and disconnect the producers that there are."""
        name = topic.partition("://")[2]
        schema = {"type": "STRING", "schema": "", "properties": {}}
        stage.admin.call(HTTPMethod.POST, f"schemas/{name}/schema", schema)
        stage.admin.set_topic_policy(topic, self._enforced, value=True)
        eventually(lambda: self._refuses(stage, topic))
        stage.admin.unload(topic)

    def end(self, stage, topic):
        """Enforce it no more."""
        stage.admin.set_topic_policy(topic, self._enforced, value=False)

    @staticmethod
    def _refuses(stage, topic):
        try:
            stage.client.create_producer(topic).close()
        except pulsar.PulsarException:
            return True
        return False


class Fenced:
    """Another producer takes the topic for itself, for longer than a message has retries."""

    name = "taken by an exclusive producer"
    times = RETRIES + 2

    def begin(self, stage, topic):
        """Fence off all other producers."""
        fencing = pulsar.ProducerAccessMode.ExclusiveWithFencing
        self._usurper = stage.client.create_producer(topic, access_mode=fencing)

    def end(self, _stage, _topic):
        """Give way."""
        self._usurper.close()


EXCLUSIVE = pulsar.ConsumerType.Exclusive
FULL = [Full("producer_exception"), Full("producer_request_hold")]
REFUSALS = [Terminated(), Deleted(), *FULL, Schema(), Fenced()]


@pytest.fixture(scope="module")
def own_broker():
    """Give a broker that looks at its quotas every second instead of every minute."""
    settings = {**HOSTILE, "backlogQuotaCheckIntervalInSeconds": 1}
    with Standalone(fast_start=True, settings=settings) as standalone:
        yield standalone


def is_refused(stage, caplog, times):
    """Tell whether a letter was refused so often.

    Then its message came that often, and once more; where nobody waits for the letter, it is
    published again.
    """
    if "a letter was not published" in caplog.text:
        return True
    counts = stage.ledger.counts()
    asked = counts["retried"] or counts["delivered"]
    return any(count > times for count in asked.values())


def refused(own_stage, fault, way, refusal, topic, caplog):
    """Refuse letters after the first messages; return the account of all, once it has ended."""
    with pr.Client(
        own_stage.url,
        operation_timeout_seconds=5,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    ) as client:
        stage = attrs.evolve(own_stage, client=client)
        publish(client, stage.topic, stage.ledger, COUNT)
        with stage.working(way, letter_send_timeout=3):
            eventually(lambda: topic in stage.admin.topics(stage.namespace))
            # Without this one nothing would be in the topic that could exceed a quota.
            client.subscribe(topic, "slow", initial_position=EARLIEST).close()
            eventually(stage.is_drained)
            refusal.begin(stage, topic)

            def until_refused():
                publish(client, stage.topic, stage.ledger, 1)
                return is_refused(stage, caplog, getattr(refusal, "times", 1))

            eventually(until_refused, within=90)
            refusal.end(stage, topic)
            fault.is_over()
        return stage.account()


@pytest.mark.parametrize("way", [retry, manage])
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.name)
def test_a_retry_topic_that_refuses(own_stage, fault, way, refusal, caplog):
    """Letters are asked for again and again until they are taken, and none becomes a dead one."""
    account = refused(own_stage, fault, way, refusal, retry_topic(own_stage.topic), caplog)

    assert account.dead == 0
    fault.survived(
        f"retry topic {refusal.name}" + (", of a subscriber" if way is manage else ""),
        AGAIN if way is manage else TOLD,
        account,
        bound=account.sent,
        why=UNDER_WAY,
    )


@pytest.mark.parametrize("kind", [EXCLUSIVE, pulsar.ConsumerType.Failover], ids=str)
def test_a_retry_topic_that_refuses_one_consumer(own_stage, fault, kind, caplog):
    """Where each redelivery is of all messages, these come later and later, too."""
    way = partial(retry, consumer_type=kind)
    account = refused(own_stage, fault, way, Fenced(), retry_topic(own_stage.topic), caplog)

    assert account.dead == 0
    fault.survived(
        "retry topic of an Exclusive or Failover subscription taken by an exclusive producer",
        TOLD,
        account,
        bound=account.sent,
        why=UNDER_WAY,
    )


@pytest.mark.parametrize("refusal", [*FULL, Fenced()], ids=lambda refusal: refusal.name)
def test_a_dead_letter_topic_that_refuses(own_stage, fault, refusal, caplog):
    """The same for dead letters."""
    dead = dead_letter_topic(own_stage.topic)
    account = refused(own_stage, fault, dead_letter, refusal, dead, caplog)

    fault.survived(
        f"dead-letter topic {refusal.name}",
        TOLD,
        account,
        bound=account.sent,
        why=UNDER_WAY,
    )


@pytest.mark.parametrize("way", [nack, reject])
def test_a_verdict_whose_dead_letter_is_refused(own_stage, fault, way, caplog):
    """It is the letter that is tried again, not the message."""
    account = refused(own_stage, fault, way, Fenced(), dead_letter_topic(own_stage.topic), caplog)

    # A broker closes the connection on which a producer publishes that was fenced off, once.
    assert max(own_stage.ledger.counts()["delivered"].values()) <= 2
    fault.survived(
        "dead-letter topic of nacks or a subscriber taken by an exclusive producer",
        AGAIN,
        account,
        bound=account.sent,
        why=UNDER_WAY,
    )

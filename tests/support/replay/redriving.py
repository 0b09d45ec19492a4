"""Dead letters for the tests of redrives, and programs that redrive them."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import attrs
import pulsar

import pulsar_retry as pr
from pulsar_retry.replay import Cluster, Redrive
from pulsar_retry.replay.redriving.run import Run
from support.reading import SUBSCRIPTION, drain

#: The program of a separate process, which a test can kill or interrupt.
PROGRAM = """
import json, os, signal, sys
from pulsar_retry.replay import Cluster, Redrive
url, admin, source, options = sys.argv[1:5]
redrive = Redrive(source, cluster=Cluster(url, admin_url=admin), **json.loads(options))
dies_after = int(sys.argv[5])

def die(so_far):
    if 0 < dies_after < so_far.redriven:
        os.kill(os.getpid(), signal.SIGKILL)

done = redrive.run(die)
print("done", done.redriven, flush=True)
"""


@attrs.frozen
class Dead:
    """A subscription's topics, with dead letters in one of them."""

    broker: Any
    admin: Any
    client: pr.Client
    topic: str

    @property
    def retry(self) -> str:
        """The retry topic."""
        return f"{self.topic}-{SUBSCRIPTION}-RETRY"

    @property
    def dlq(self) -> str:
        """The dead-letter topic."""
        return f"{self.topic}-{SUBSCRIPTION}-DLQ"

    @property
    def cluster(self) -> Cluster:
        """The test's cluster."""
        return Cluster(self.broker.service_url, admin_url=self.broker.admin_url)

    def subscribe(self, **options: Any) -> pr.Consumer:
        """Return a consumer with retries."""
        return self.client.subscribe(
            self.topic,
            SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.Shared,
            enable_retry=True,
            dead_letter_policy=pr.DeadLetterPolicy(2, initial_subscription_name="keep"),
            delay_levels="100ms",
            **options,
        )

    def create(self, *subscriptions: str, partitions: int = 0) -> None:
        """Create the dead-letter topic, with a subscription from its start."""
        admin = self.cluster.admin()
        admin.topics.create(self.dlq, partitions=partitions)
        for each in subscriptions:
            admin.subscriptions.create(self.dlq, each, at="earliest")

    def properties(self, number: int, **more: str) -> dict[str, str]:
        """Return the properties that a consumer writes on a dead letter."""
        return {
            "REAL_TOPIC": self.topic,
            "REAL_SUBSCRIPTION": SUBSCRIPTION,
            "ORIGIN_MESSAGE_ID": f"1:{number}:-1",
            "RECONSUMETIMES": "3",
            "DELAY_TIME": "1000",
            "FAILURE_REASON": "odd" if number % 2 else "even",
            "FAILURE_TIME": f"2026-01-01T00:{number % 60:02}:00Z",
            "number": str(number),
            **more,
        }

    def fill(self, count: int, **options: Any) -> None:
        """Publish dead letters, whose payloads are their numbers."""
        self._ensure()
        options = {"batching_enabled": False, "max_pending_messages": 0} | options
        producer = self.client.create_producer(self.dlq, **options)
        for number in range(count):
            properties = self.properties(number)
            producer.send_async(b"%d" % number, None, properties=properties)
        producer.flush()
        producer.close()

    def fill_retry(self, count: int, delay: float) -> None:
        """Publish retry letters that are due after *delay* seconds; payloads are their numbers."""
        producer: Any = self.client.create_producer(
            self.retry, batching_enabled=False, max_pending_messages=0
        )
        for number in range(count):
            properties = {
                **self.properties(number),
                "RECONSUMETIMES": "1",
                "DELAY_TIME": str(round(delay * 1000)),
                "RETRY_TOPIC": self.retry,
                "FAILURE_ATTEMPT": "1",
                "FAILURE_ERROR": "ValueError" if number % 2 else "TimeoutError",
            }
            after = timedelta(seconds=delay)
            producer.send_async(b"%d" % number, None, properties=properties, deliver_after=after)
        producer.flush()
        producer.close()

    def send(self, payload: Any, properties: Mapping[str, str], **options: Any) -> None:
        """Publish one dead letter."""
        self._ensure()
        producer = self.client.create_producer(self.dlq, chunking_enabled=True)
        producer.send(payload, properties=dict(properties), **options)
        producer.close()

    def _ensure(self) -> None:
        """Make a subscription that keeps the messages of the dead-letter topic."""
        if not self.cluster.admin().topics.exists(self.dlq):
            self.create("keep")

    def redrive(self, *arguments: Any, **options: Any) -> Redrive:
        """Return a redrive of these letters."""
        return Redrive(self.dlq, *arguments, cluster=self.cluster, **options)

    def program(self, *, dies_after: int = 0) -> subprocess.Popen[str]:
        """Start a redrive in a separate process; it is killed after so many letters, if any.

        A rate leaves letters for the next run: progress is told only twice a second.
        """
        options = '{"rate": 2000}' if dies_after else "{}"
        urls = (self.broker.service_url, self.broker.admin_url, self.dlq, options, str(dies_after))
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *urls], stdout=subprocess.PIPE, encoding="utf-8"
        )

    def backlog(self, subscription: str = "keep") -> int:
        """Return how many letters are left, in all partitions together."""
        stats = self.cluster.admin().topics
        return sum(
            stats.stats(each)["subscriptions"][subscription]["msgBacklog"]
            for each in stats.partition_names(self.dlq)
        )


def at_letter(monkeypatch: Any, number: int, act: Callable[[], object]) -> None:
    """Call *act* before a redrive publishes letter *number*, however fast it is."""
    sent, send = itertools.count(1), Run._send

    def act_and_send(run: Run, *letter: Any) -> None:
        if next(sent) == number:
            act()
        send(run, *letter)

    monkeypatch.setattr(Run, "_send", act_and_send)


def received(consumer: pr.Consumer, count: int) -> list[pulsar.Message]:
    """Receive and acknowledge *count* messages, and check that no more come."""
    messages = drain(consumer, count=count, but_delayed=True)
    assert count == len(messages)
    return messages

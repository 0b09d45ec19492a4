"""Seeks, restores and redrives of retries whose process is killed in the middle."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.replay import Snapshot, seek
from support.reading import SOON, SUBSCRIPTION, drain
from support.replay.replaying import trim

#: A process starts for each kill, and a busy machine takes long to start one.
pytestmark = pytest.mark.timeout(600)

#: Does what it is asked for, and is killed at the given call of a step.
PROGRAM = """
import os, signal, sys
from pulsar_retry.admin.subscriptions import Subscriptions
from pulsar_retry.consumer.handoff.sending import Flight
from pulsar_retry.replay import Cluster, Redrive, Snapshot, Subscription, seek
from pulsar_retry.replay.redriving.run import Run
from pulsar_retry.replay.seeking import acking
from pulsar_retry.replay.seeking.mover import Mover
url, admin, topic, name, what, step, number = sys.argv[1:]
calls = []

def killed_in(place, name):
    whole = getattr(place, name)
    def patched(*given, **named):
        calls.append(name)
        if (name, calls.count(name)) == (step, int(number)):
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*given, **named)
    setattr(place, name, patched)

killed_in(Subscriptions, "reset")
killed_in(Mover, "_settle")
killed_in(Flight, "has_receipt")
killed_in(acking, "_send")
killed_in(acking, "_wait")
killed_in(Run, "item_done")
killed_in(Run, "_settle")
it = Subscription(Cluster(url, admin_url=admin), topic, name)
match what:
    case "seek":
        done = seek(it, "earliest", grace=1)
    case "restore":
        done = Snapshot.get(it.cluster, topic, "s").restore(grace=1)
    case "copy":
        other = Subscription(it.cluster, topic, "other")
        done = Snapshot.get(it.cluster, topic, "s").restore(other, grace=1)
    case _:
        done = Redrive(it.retry_letter_topic, what, cluster=it.cluster).run()
sys.exit(not done.is_complete)
"""
STEPS = {
    "seek": [("reset", 1), ("_settle", 1), ("has_receipt", 1), ("_send", 1), ("_wait", 1)],
    "restore": [
        *[("reset", 1), ("_send", 1), ("_wait", 1), ("_settle", 1)],
        *[("has_receipt", 1), ("has_receipt", 5), ("_send", 2), ("_wait", 2)],
    ],
    "copy": [
        *[("has_receipt", 1), ("has_receipt", 5), ("reset", 1), ("_send", 1), ("_wait", 1)],
        ("_settle", 1),
    ],
    "retry": [("has_receipt", 1), ("has_receipt", 5), ("item_done", 2), ("_settle", 1)],
    "discard": [("item_done", 1), ("_settle", 1)],
}
#: What comes in the end, of messages whose letter waits and is all that is left of them (a), whose
#: letter waits (b), that are acknowledged (c), and that are not settled (d).
COMES = {"seek": "abcd", "restore": "abd", "copy": "abd", "retry": "abd", "discard": "d"}


@pytest.mark.parametrize("what", STEPS)
def test_a_kill_at_every_step(broker, client, admin, topic, subscription, subscribe, what):
    """The same command again brings all that it should, once, single, in batches or in chunks."""
    options = {"dead_letter_policy": pr.DeadLetterPolicy(100), "delay_levels": "1h"}
    consumer = subscribe(initial_position=pulsar.InitialPosition.Earliest, **options)
    settle = {"c": consumer.acknowledge, "d": lambda _message: None}
    for kind in "abdc":
        _publish(client, topic, kind)
        for _ in range(6):
            settle.get(kind, consumer.reconsume_later)(consumer.receive(SOON))
        if kind == "a":
            trim(admin, topic)
    consumer.close()
    if what in {"restore", "copy"}:
        Snapshot.create(subscription, name="s")
        seek(subscription, "latest", grace=0)
    urls = (broker.service_url, broker.admin_url)
    command = [sys.executable, "-c", PROGRAM, *urls, topic, SUBSCRIPTION, what]

    for step, number in STEPS[what]:
        killed = subprocess.run([*command, step, str(number)], check=False)
        assert -9 == killed.returncode, step
    subprocess.run([*command, "none", "1"], check=True)

    name = "other" if what == "copy" else SUBSCRIPTION
    found = _found(client, topic, name, count=6 * len(COMES[what]))
    assert set(COMES[what]) == {name[0] for name in found}
    assert 6 * len(COMES[what]) == len(found)
    if what != "retry":  # what was published in the last moment comes twice
        assert {1} == set(found.values())


def _publish(client: pr.Client, topic: str, kind: str) -> None:
    """Publish six messages: two single ones, three in a batch, and one in chunks."""
    single: Any = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    batch = client.create_producer(topic, batching_max_publish_delay_ms=10_000)
    for number in range(2):
        single.send(f"{kind}{number}".encode())
    for number in range(2, 5):
        batch.send_async(f"{kind}{number}".encode(), None)
    batch.flush()
    single.send(f"{kind}5".encode() + os.urandom(6_000_000))
    batch.close()
    single.close()


def _found(client: pr.Client, topic: str, name: str, count: int) -> Counter[str]:
    """Return the names of the messages that come to a subscription, and how often they came."""
    consumer = client.subscribe(
        topic, name, consumer_type=pulsar.ConsumerType.Shared, enable_retry=True
    )
    messages = drain(consumer, count=count, but_delayed=True)
    return Counter(each.data()[:2].decode() for each in messages)

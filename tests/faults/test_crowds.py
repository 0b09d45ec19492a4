"""Consumers that share a name or fail, and acknowledgements in random order."""

from __future__ import annotations

import math
import random
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pulsar
import pytest

import pulsar_retry as pr
from support.faults.crashing import crash
from support.faults.handing import (
    DELAY,
    NAME,
    manage,
    process,
    publish,
    retry,
    retry_many,
    subscribe,
)
from support.faults.ledger import payload
from support.reading import SOON, SUBSCRIPTION
from support.waiting import eventually

COUNT = 200


@pytest.mark.parametrize("way", [retry_many, manage])
def test_two_consumers_of_one_name(stage, fault, way):
    """Two consumers with the same name share the messages and the letters."""
    publish(stage.client, stage.topic, stage.ledger, COUNT)
    with stage.working(way, way, consumer_name=NAME):
        fault.is_over()

    fault.survived(
        "two consumers with the same name",
        "They share the messages and the letters",
        stage.account(),
        bound=0,
    )


def test_one_of_two_consumers_of_one_name_dies(stage, fault):
    """The other consumer receives the messages of the killed one."""
    arguments = (stage.url, stage.topic, stage.ledger, "same name", "receipt", 5)
    with stage.working(retry, consumer_name=NAME), ThreadPoolExecutor(1) as pool:
        dying = pool.submit(crash, *arguments)
        while not wait([dying], timeout=0.2).done:  # no more than the other one can handle
            publish(stage.client, stage.topic, stage.ledger, 10)
        fault.is_over()
        assert -9 == dying.result()

    fault.survived(
        "one of two consumers with the same name killed",
        "The other consumer receives what the killed one had not acknowledged",
        stage.account(),
        bound=50,
        why="letters in flight, and acknowledgements of the last 0.1 s",
    )


@pytest.mark.parametrize("batched", [False, True])
def test_acknowledgements_out_of_order(stage, fault, batched):
    """A third is acknowledged and a third is handed on, in random order; then comes an unload."""
    publish(stage.client, stage.topic, stage.ledger, COUNT, batching_enabled=batched)
    consumer = subscribe(stage.client, stage.topic)
    messages = [consumer.receive(SOON) for _ in range(COUNT)]
    stage.ledger.enter_all("delivered", messages)
    random.Random(7).shuffle(messages)  # noqa: S311 - any order will do
    third = COUNT // 3
    for message in messages[:third]:
        process(consumer, stage.ledger, message)
    for message in messages[third : 2 * third]:
        stage.ledger.enter("retried", message)
        consumer.reconsume_later(message, delay=2)
    if not batched:
        eventually(lambda: stage.admin.backlog(stage.topic, SUBSCRIPTION) == COUNT - 2 * third)
        eventually(lambda: stage.admin.has_stored_acks(stage.topic, SUBSCRIPTION))
    stage.admin.unload(stage.topic)
    fault.is_over()
    consumer.close()
    account = stage.finish(retry)

    fault.survived(
        "acknowledgements out of order, then an unload" + (", with batches" if batched else ""),
        "Every batch with an unacknowledged message is delivered again as a whole"
        if batched
        else "Only unacknowledged messages are delivered again",
        account,
        bound=2 * third if batched else 0,
        why="acknowledged messages of batches that were not fully acknowledged" if batched else "",
    )


def test_a_key_that_fails(stage, fault):
    """On Key_Shared with lanes, messages of this key wait, and those of other keys do not."""
    keys, mended = 20, threading.Event()

    def handle(message):
        stage.ledger.enter("delivered", message)
        if message.partition_key() == "0" and not mended.is_set():
            raise ConnectionError("not now")
        stage.ledger.enter("processed", message)

    policy = pr.RetryPolicy(max_attempts=math.inf, backoff=pr.Fixed(DELAY))
    options = {"consumer_type": pulsar.ConsumerType.KeyShared, "retry_policy": policy}
    with stage.client.subscriber(stage.topic, SUBSCRIPTION, handle, **options):
        producer = stage.client.create_producer(stage.topic)
        for number in range(COUNT):
            producer.send(payload(number), partition_key=str(number % keys))
            stage.ledger.enter("sent", number)
        poisoned = set(range(0, COUNT, keys))
        eventually(lambda: stage.ledger.open() == poisoned)
        fault.is_over()
        mended.set()
        eventually(lambda: not stage.ledger.open())

    fault.survived(
        "messages of one key fail, on Key_Shared",
        "Messages of this key wait in order; those of other keys are handled",
        stage.account(),
        bound=0,
    )

"""Consumers that get in each other's way, and acknowledgements in no order."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from crashing import crash
from handing import NAME, manage, process, publish, retry, retry_many, subscribe
from reading import SOON, SUBSCRIPTION, eventually

COUNT = 200


@pytest.mark.parametrize("way", [retry_many, manage])
def test_two_consumers_of_one_name(stage, fault, way):
    """Names are for people: two of one name share the messages, and their letters."""
    publish(stage.client, stage.topic, stage.ledger, COUNT)
    with stage.working(way, way, consumer_name=NAME):
        fault.is_over()

    fault.survived("two consumers of one name", "they share", stage.account(), bound=0)


def test_one_of_two_consumers_of_one_name_dies(stage, fault):
    """What it held goes to the other one."""
    arguments = (stage.url, stage.topic, stage.ledger, "same name", "receipt", 5)
    with stage.working(retry, consumer_name=NAME), ThreadPoolExecutor(1) as pool:
        dying = pool.submit(crash, *arguments)
        while not dying.done():
            publish(stage.client, stage.topic, stage.ledger, 10)
        fault.is_over()
        assert -9 == dying.result()

    fault.survived(
        "one of two consumers of one name killed",
        "the other gets what it held",
        stage.account(),
        bound=50,
        why="letters in flight, and acknowledgements of the last 0.1 s",
    )


@pytest.mark.parametrize("batched", [False, True])
def test_acknowledgements_out_of_order(stage, fault, batched):
    """A third is acknowledged and a third handed on, in no order; then the topic moves."""
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
        "acknowledgements out of order, then an unload" + (" (batches)" if batched else ""),
        "batches that are not done come again whole" if batched else "what is open comes again",
        account,
        bound=2 * third if batched else 0,
        why="messages of batches that are not done" if batched else "",
    )

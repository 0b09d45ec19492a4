"""Leases on a real broker."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pulsar

import pulsar_retry as pr
from support.pull.handling import SOON, Notes
from support.reading import SUBSCRIPTION
from support.waiting import eventually

KEY_SHARED = pulsar.ConsumerType.KeyShared

#: A second, and no more.
SHORT = pr.Lease(max_total=1)

#: On a busy machine, the lease of a handler that does not hang may be over, too.
MANY = pr.RetryPolicy(max_attempts=1000, backoff=pr.Immediate())


def test_an_expired_delivery_comes_back(start, publish, caplog):
    """Its handler hangs; the message is retried elsewhere, and what it says later is refused."""
    release = threading.Event()
    notes = Notes(lambda message: release.wait(SOON) if pr.attempt_of(message) == 1 else None)
    subscriber = start(notes, lease=SHORT, concurrency=2, retry_policy=MANY)
    publish()
    notes.wait_for(2)
    with caplog.at_level(logging.WARNING):
        release.set()
        eventually(lambda: "returned too late" in caplog.text)
    report = subscriber.stop()
    assert 1 == report.acknowledged
    assert 1 <= report.expired == report.retried


def test_a_long_handler_is_left_alone(start, publish):
    """As long as its lease is not over: there is only one, which is not extended."""
    pause = threading.Event()
    notes = Notes(lambda _message: pause.wait(1.5))
    subscriber = start(notes, lease=pr.Lease(max_total=600))
    publish()
    notes.wait_for(1)
    report = subscriber.stop()
    assert (1, 0) == (report.acknowledged, report.expired)


def test_an_async_handler_is_cancelled(start, publish, admin, topic):
    """When its lease expires."""
    cancelled = threading.Event()

    async def hang(message: pulsar.Message) -> None:
        if pr.attempt_of(message) == 1:
            try:
                await asyncio.sleep(SOON)
            except asyncio.CancelledError:
                cancelled.set()
                raise

    subscriber = start(hang, lease=SHORT, retry_policy=MANY)
    publish()
    assert cancelled.wait(SOON)
    eventually(lambda: not admin.backlog(topic, SUBSCRIPTION))  # the letter is out
    eventually(lambda: not admin.backlog(f"{topic}-{SUBSCRIPTION}-RETRY", SUBSCRIPTION))
    report = subscriber.stop()
    assert 1 == report.acknowledged
    assert 1 <= report.expired


def test_a_message_is_settled_by_the_worker_whose_lease_has_expired(start, publish):
    """It comes back to the same one, which must not take its second result for the late first."""

    async def hangs_once(message: Any) -> None:
        notes.note(message)
        if len(notes.seen) == 1:
            await asyncio.sleep(SOON)

    notes = Notes()
    start(hangs_once, lease=SHORT, concurrency=1, retry_policy=MANY, consumer_type=KEY_SHARED)
    publish(b"first", partition_key="k")
    publish(b"second", partition_key="k")
    eventually(lambda: b"second" in notes.seen)
    assert b"first" == notes.seen[-2]

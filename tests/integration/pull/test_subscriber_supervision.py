"""Handlers that hang, block or fill pools, in real time: others go on, or it ends and says so."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.pull import crew
from support.pull.handling import SOON, Notes
from support.reading import SUBSCRIPTION
from support.waiting import eventually

SHORT = pr.Lease(max_total=0.5)


def test_a_coroutine_that_cannot_be_cancelled(start, publish, monkeypatch):
    """Another worker takes its place; without that, nothing more would be handled here."""
    monkeypatch.setattr(crew, "_GRACE", 0.2)
    release, seen = threading.Event(), Counter()

    async def handle(message: Any) -> None:
        seen[message.data()] += 1
        while message.data() == b"hang" and not release.is_set():
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue

    subscriber = start(handle, lease=SHORT, concurrency=1)
    publish(b"hang")
    eventually(lambda: seen[b"hang"] == 3)
    publish(b"fine")
    eventually(lambda: seen[b"fine"])
    assert "handlers have not returned after their lease" in subscriber.health.reason
    release.set()
    eventually(lambda: subscriber.health.state == "running")
    report = subscriber.stop()
    assert (1, 1, 3) == (report.acknowledged, report.dead_lettered, report.expired)


def test_a_handler_that_blocks_the_event_loop(start, publish, monkeypatch, caplog):
    """It is told at once, and ends the subscription when it has had the time of a lease."""
    monkeypatch.setattr(crew, "_SILENT", 0.2)
    monkeypatch.setattr(crew, "_PATIENCE", 1.0)
    release = threading.Event()

    async def block(_message: Any) -> None:
        release.wait(SOON)

    with caplog.at_level(logging.WARNING, "pulsar_retry"):
        subscriber = start(block, lease=SHORT)
        publish()
        eventually(lambda: "a handler has blocked the event loop" in subscriber.health.reason)
        eventually(lambda: "asyncio.to_thread" in caplog.text)
        with pytest.raises(pr.WorkersLostError, match="blocked the event loop"):
            subscriber.result(SOON)
    release.set()
    again = Notes()
    start(again)
    again.wait_for(1)


def test_letters_that_cannot_be_published(start, publish, client, topic):
    """It is told, since nothing else is handled wrongly meanwhile; and it passes."""
    exclusive = pulsar.ProducerAccessMode.Exclusive
    other = client.create_producer(f"{topic}-{SUBSCRIPTION}-RETRY", access_mode=exclusive)

    def fail(_message: Any) -> None:
        raise ValueError

    subscriber = start(fail)
    publish()
    eventually(lambda: "1 letters could not be published" in subscriber.health.reason)
    assert subscriber.health.state == "degraded"
    other.close()
    eventually(lambda: subscriber.health.state == "running")


def test_failures_do_not_wait_for_the_handlers_own_threads(start, publish, dead_letters):
    """Handlers that fill the event loop's pool keep no failure from being settled."""
    release, waiting = threading.Event(), []

    async def handle(message: Any) -> None:
        if message.data() == b"fail":
            raise ValueError
        waiting.append(message)
        await asyncio.to_thread(release.wait, SOON)

    start(handle, retry_policy=pr.RetryPolicy(max_attempts=1), concurrency=100)
    for _ in range(60):  # the pool has 32 threads at most
        publish(b"wait")
    eventually(lambda: len(waiting) == 60)
    publish(b"fail")
    (dead,) = dead_letters(1)
    assert (b"fail", False) == (dead.data(), release.is_set())
    release.set()


def test_a_stop_while_the_broker_does_not_answer(proxy, topic, publish, caplog):
    """It returns its report when the time of one request is over; it logs the error."""
    handled = threading.Event()
    client = pr.Client(proxy.url, operation_timeout_seconds=5)
    subscriber = client.subscriber(topic, SUBSCRIPTION, lambda _: handled.set()).start()
    publish()
    assert handled.wait(SOON)
    eventually(lambda: subscriber.in_hand[0] == 0)
    proxy.stall()
    report = subscriber.stop(timeout=0)
    assert (1, 0) == (report.acknowledged, report.abandoned)
    assert "stopped" == subscriber.health.state
    assert "was not closed: Timeout" in caplog.text
    proxy.mend()
    with contextlib.suppress(pulsar.Timeout):
        client.close()

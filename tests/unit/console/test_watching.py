"""What the console says when it cannot watch. There is no broker."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from pulsar_retry.console.app import Console
from pulsar_retry.console.login import Access
from pulsar_retry.console.watch import Watcher
from pulsar_retry.errors import AdminError, AdminNotFoundError
from pulsar_retry.ops.overview import LetterTopic
from pulsar_retry.replay import Cluster
from support.waiting import eventually

DLQ = "persistent://shop/a/orders-billing-DLQ"


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    """Give the watcher of two namespaces."""
    cluster = Cluster("pulsar://127.0.0.1:1", admin_url="http://127.0.0.1:1")
    made = Console(cluster, Access("127.0.0.1"), ["shop/a", "shop/b"]).watcher
    yield made
    made.stop()


def test_one_namespace_that_works_hides_no_other(watcher, monkeypatch, caplog) -> None:
    """Pages say what they do not see; the log says it once a minute."""
    fails = {"shop/a"}

    def ask(namespace: str) -> tuple[Any, ...]:
        if namespace in fails:
            raise AdminError(401, "namespaces", "no")
        return ()

    monkeypatch.setattr(watcher, "_ask", ask)
    watcher.poll()
    watcher.poll()
    assert "shop/a" in watcher.problem
    assert 1 == sum("shop/a" in each for each in caplog.messages)
    fails.clear()
    watcher.poll()
    assert "" == watcher.problem


def test_a_topic_that_cannot_be_read_is_in_the_log_once(watcher, monkeypatch, caplog) -> None:
    """It is tried again every few seconds."""

    def sync(_topic: str) -> None:
        raise AdminError(401, "namespaces", "no")

    monkeypatch.setattr(watcher._indexer, "sync", sync)
    with caplog.at_level(logging.WARNING, "pulsar_retry"):
        for _ in range(3):
            with pytest.raises(AdminError):
                watcher.refresh(DLQ, 30)
            eventually(lambda: DLQ in caplog.text)
    assert 1 == sum(DLQ in each.getMessage() for each in caplog.records)


def test_a_topic_that_is_deleted_leaves_the_index(watcher, monkeypatch, caplog) -> None:
    """Otherwise its letters would stay in memory."""
    numbers = {"backlog": 1, "oldest_age_seconds": 1.0, "rate_in": 0.0, "rate_out": 0.0}
    others = {"main_topic": None, "subscription": None, "partitions": 0, "consumers": 0}
    listed = [LetterTopic(topic=DLQ, kind="dead_letter", subscriptions=(), **numbers, **others)]
    indexer = watcher._indexer

    def ask(namespace: str) -> tuple[LetterTopic, ...]:
        watcher._listed[namespace] = tuple(listed) if namespace == "shop/a" else ()
        return watcher._listed[namespace]

    def sync(topic: str, *_: object) -> None:
        if not listed:
            raise AdminNotFoundError(404, "stats", "no such topic")
        indexer._topics[topic] = None

    monkeypatch.setattr(watcher, "_ask", ask)
    monkeypatch.setattr(indexer, "clients", tuple)
    monkeypatch.setattr(indexer, "_sync", sync)
    watcher.poll()
    eventually(lambda: DLQ in indexer._topics)
    listed.clear()
    watcher.poll()
    eventually(lambda: DLQ not in indexer._topics)
    assert not caplog.messages

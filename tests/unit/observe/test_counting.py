"""Plain counters: exact and bounded."""

from __future__ import annotations

import gc
import os
import re
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.observe.counting import (
    COUNTERS,
    MOST_SUBSCRIPTIONS,
    MOST_VALUES,
    OTHER,
    AllCounters,
    Counters,
    topic_label,
)

ORDERS = "persistent://public/default/orders"


def test_threads_lose_no_count() -> None:
    """Neither of acknowledgements, which take no lock, nor of the others."""
    counters = Counters("orders", "billing")

    def run() -> None:
        for _ in range(20_000):
            counters.acknowledged += 1
            counters.count("deliveries", "acknowledged")

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {"acknowledged": 320_000} == counters.counts("deliveries")


@given(st.lists(st.text(max_size=80), max_size=200))
def test_labels_are_bounded(values: list[str]) -> None:
    """Whatever a caller gives as a reason: no raw text, few values, and nothing lost."""
    counters = Counters("orders", "billing")
    for value in values:
        counters.count("dead_letters", value)
    counts = counters.counts("dead_letters")
    assert len(counts) <= MOST_VALUES + 1
    assert len(values) == sum(counts.values())
    assert all(len(each) <= 64 and each.isascii() and " " not in each for each in counts)


def test_what_is_no_name_counts_as_other() -> None:
    """An exception's text has spaces, for example."""
    counters = Counters("orders", "billing")
    for value in ("retries-exhausted", "no such customer: 17", "", "x" * 65, OTHER):
        counters.count("dead_letters", value)
    assert {"retries-exhausted": 1, OTHER: 4} == counters.counts("dead_letters")


class Source:
    """Something with a gauge."""

    def gauges(self) -> dict[str, float]:
        """Return it."""
        return {"inflight": 7.0}


def test_a_source_is_asked_as_long_as_it_lives() -> None:
    """A consumer that was dropped leaves no gauge behind, one that was closed neither."""
    counters, dropped, closed = Counters("orders", "billing"), Source(), Source()
    counters.attach(dropped)
    counters.attach(closed)
    assert [{"inflight": 7.0}] * 2 == counters.gauges()
    del dropped
    gc.collect()
    assert 1 == len(counters.gauges())
    counters.detach(closed)
    assert [] == counters.gauges()


def test_all_consumers_of_a_subscription_are_counted_together() -> None:
    """Also those that are opened after others were closed."""
    counters = AllCounters()
    assert counters.of("orders", "billing") is counters.of(ORDERS, "billing")
    assert counters.of("orders", "billing") is not counters.of("orders", "audit")
    assert 2 == len(counters.all())


def test_very_many_subscriptions() -> None:
    """Counts of those that are closed are dropped at last; of those that are open, never."""
    counters, consumer = AllCounters(), Source()
    is_open = counters.of("orders", "billing")
    is_open.attach(consumer)
    for number in range(2 * MOST_SUBSCRIPTIONS):
        counters.of(f"orders-{number}", "billing")
    assert len(counters.all()) <= MOST_SUBSCRIPTIONS
    assert is_open in counters.all()


def test_a_forked_child_begins_at_nothing() -> None:
    """What the parent has done would be counted twice where both are scraped."""
    COUNTERS.of("forked", "billing").count("retries", "nack")
    child = os.fork()
    if child == 0:
        os._exit(len(COUNTERS.all()))
    _, status = os.waitpid(child, 0)
    assert 0 == os.waitstatus_to_exitcode(status)
    assert COUNTERS.all()


@pytest.mark.parametrize(
    ("topic", "label"),
    [
        ("orders", ORDERS),
        ("shop/eu/orders", "persistent://shop/eu/orders"),
        ("non-persistent://a/b/c", "non-persistent://a/b/c"),
        (f"{ORDERS}-partition-3", ORDERS),
        (["b", "a"], "persistent://public/default/a,persistent://public/default/b"),
        (re.compile("orders-.*"), "orders-.*"),
        ("a/b", "a/b"),
    ],
)
def test_the_label_of_a_topic(topic: Any, label: str) -> None:
    """Its full name, without a partition: one value for one topic."""
    assert label == topic_label(topic)


@given(st.lists(st.text("abc", min_size=1), min_size=4, unique=True))
def test_the_label_of_many_topics_is_short(topics: list[str]) -> None:
    """Three are named, whatever their order."""
    label = topic_label(topics)
    assert label.endswith(f" and {len(topics) - 3} more")
    assert label == topic_label(topics[::-1])

"""Plain counters: exact, bounded, and cheap by looking at few of many."""

from __future__ import annotations

import gc
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.observe.counting import (
    BOOK,
    MOST_APART,
    MOST_LETTERS_APART,
    MOST_VALUES,
    OTHER,
    Book,
    Buckets,
    Counters,
    Tally,
)


def acknowledge(
    counters: Counters, now: float, *, attempt: int | None = 1, letter: bool = False
) -> bool:
    """Do what a consumer does; tell whether it was looked at."""
    events = counters.letters if letter else counters.messages
    events.count += 1
    if events.count < events.due:
        return False
    counters.sample(events, now, attempt, 0.2)
    return True


def test_few_acknowledgements_are_all_looked_at() -> None:
    """One a second: each is in the histograms as it is."""
    counters = Counters("orders", "billing")
    assert all(acknowledge(counters, float(now), attempt=2) for now in range(1, 100))
    attempts = counters.buckets("attempts")
    assert attempts is not None
    assert (99, 198.0) == (attempts.counts[1], attempts.sum)


def test_of_many_some_stand_for_all() -> None:
    """Of a hundred thousand in a second about a hundred are looked at, and nothing gets lost."""
    counters = Counters("orders", "billing")
    looks = sum(acknowledge(counters, 1000 + number * 1e-5) for number in range(100_000))
    assert 50 < looks < 200
    attempts = counters.buckets("attempts")
    assert attempts is not None
    assert 100_000 - MOST_APART < sum(attempts.counts) <= 100_000
    assert {"acknowledged": 100_000} == counters.counts("deliveries")


def test_all_are_looked_at_again_when_they_get_few() -> None:
    """After a burst no more go by unseen than come in some hundredths of a second."""
    counters = Counters("orders", "billing")
    for number in range(10_000):
        acknowledge(counters, 1000 + number * 1e-5)
    unseen = 0
    while not acknowledge(counters, 2000.0 + unseen):
        unseen += 1
    assert unseen < MOST_APART
    assert all(acknowledge(counters, 3000.0 + now) for now in range(10))


def test_a_hook_has_every_one_looked_at() -> None:
    """However many there are, and whichever consumer of the subscription acknowledges."""
    counters = Counters("orders", "billing")
    for number in range(1000):
        acknowledge(counters, 1000 + number * 1e-6)
    counters.sample_all()
    assert all(acknowledge(counters, 1001 + n * 1e-6) for n in range(1000))


def test_letters_stand_for_letters_alone() -> None:
    """Their attempts are not taken for those of the messages between them."""
    counters = Counters("orders", "billing")
    for number in range(10_000):
        acknowledge(counters, 1000 + number * 1e-5)
        acknowledge(counters, 1000 + number * 1e-5, attempt=5, letter=True)
    attempts = counters.buckets("attempts")
    assert attempts is not None
    assert {"acknowledged": 20_000} == counters.counts("deliveries")
    for bucket in (0, 4):
        assert 10_000 - MOST_APART < attempts.counts[bucket] <= 10_000


def test_letters_after_a_burst_are_sampled_soon() -> None:
    """Bursts of letters are followed by hours with few."""
    counters = Counters("orders", "billing")
    for number in range(20_000):
        acknowledge(counters, 1000 + number * 2e-5, attempt=2, letter=True)
    later = [acknowledge(counters, 2000.0 + 60 * n, attempt=2, letter=True) for n in range(40)]
    assert any(later[:MOST_LETTERS_APART])
    assert all(later[MOST_LETTERS_APART:])


def test_ids_are_counted_but_in_no_histogram() -> None:
    """Of an id nothing can be seen. Looking at many costs no more than at messages."""
    counters = Counters("orders", "billing")
    looks = sum(acknowledge(counters, 1000 + n * 1e-5, attempt=None) for n in range(10_000))
    assert looks < 200
    assert counters.buckets("attempts") is None
    assert {"acknowledged": 10_000} == counters.counts("deliveries")


def test_threads_lose_no_count() -> None:
    """Nor does the histogram."""
    counters = Counters("orders", "billing")

    def run() -> None:
        for _ in range(20_000):
            acknowledge(counters, 1.0)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    attempts = counters.buckets("attempts")
    assert attempts is not None
    assert 160_000 == counters.messages.count
    assert 160_000 - MOST_APART <= sum(attempts.counts) <= 160_000


@given(st.lists(st.text(max_size=80), max_size=200))
def test_labels_are_bounded(values: list[str]) -> None:
    """Whatever a caller gives as a reason: no raw text, few values, and nothing lost."""
    tally = Tally()
    for value in values:
        tally.add(value)
    assert len(tally.counts) <= MOST_VALUES + 1
    assert len(values) == sum(tally.counts.values())
    assert all(len(each) <= 64 and each.isascii() and " " not in each for each in tally.counts)


def test_what_is_no_name_counts_as_other() -> None:
    """An exception's text has spaces, for example."""
    tally = Tally()
    for value in ("retries-exhausted", "no such customer: 17", "", "x" * 65, OTHER):
        tally.add(value)
    assert {"retries-exhausted": 1, OTHER: 4} == tally.counts


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_histogram_has_every_value(values: list[float]) -> None:
    """In the bucket whose bound is the first that is not below it."""
    buckets = Buckets((1.0, 10.0))
    for value in values:
        buckets.add(value)
    assert [
        sum(each <= 1 for each in values),
        sum(1 < each <= 10 for each in values),
        sum(each > 10 for each in values),
    ] == buckets.counts
    assert buckets.sum == pytest.approx(sum(values))


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


def test_one_ledger_for_a_subscription() -> None:
    """However many consumers it has: their counters are one."""
    book = Book()
    assert book.counters("orders", "billing") is book.counters("orders", "billing")
    assert book.counters("orders", "billing") is not book.counters("orders", "audit")
    assert 2 == len(book.all_counters())


def test_a_forked_child_begins_at_nothing() -> None:
    """What the parent has done would be counted twice where both are scraped."""
    BOOK.counters("forked", "billing").count("retries", "nack")
    child = os.fork()
    if child == 0:
        os._exit(len(BOOK.all_counters()))
    _, status = os.waitpid(child, 0)
    assert 0 == os.waitstatus_to_exitcode(status)
    assert BOOK.all_counters()

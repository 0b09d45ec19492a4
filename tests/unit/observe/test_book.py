"""Ledgers go when their consumers are long gone, and never while somebody counts in them."""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_retry.observe.counting import KEPT, Book


class Consumer:
    """Has gauges as long as it is open."""

    def gauges(self) -> Mapping[str, float]:
        """Return none."""
        return {}


class Clock:
    """Stands still."""

    now = 1000.0

    def __call__(self) -> float:
        """Return the seconds."""
        return self.now


def test_a_ledger_goes_some_time_after_its_last_consumer() -> None:
    """Until then it can be scraped; a new one starts at 0."""
    clock = Clock()
    book, consumer = Book(clock), Consumer()
    counters = book.counters("orders", "billing")
    counters.attach(consumer)
    counters.messages.count = 7
    clock.now += 10 * KEPT
    assert [counters] == book.all_counters()
    counters.detach(consumer)
    assert [counters] == book.all_counters()
    clock.now += KEPT / 2
    assert book.counters("orders", "billing") is counters
    clock.now += KEPT
    assert [counters] == book.all_counters(), "somebody holds it, and may count in it"
    assert book.counters("orders", "billing") is counters
    del counters
    book.all_counters()
    clock.now += 2 * KEPT
    assert [] == book.all_counters()
    assert 0 == book.counters("orders", "billing").messages.count


def test_a_subscription_that_begins_again_goes_on_counting() -> None:
    """If that is within the time, as with consumers that are made anew."""
    clock = Clock()
    book = Book(clock)
    book.counters("orders", "billing").messages.count = 7
    for _ in range(20):
        clock.now += KEPT / 2
        consumer = Consumer()
        book.counters("orders", "billing").attach(consumer)
        assert [7] == [each.messages.count for each in book.all_counters()]


def test_very_many_subscriptions_that_are_closed() -> None:
    """Only the last ones are there."""
    clock = Clock()
    book = Book(clock)
    for number in range(500):
        book.counters(f"orders-{number}", "billing")
        clock.now += KEPT / 10
    assert len(book.all_counters()) < 20

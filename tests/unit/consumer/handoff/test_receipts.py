"""Receipts are taken in bursts, in the order of the sends, and never given to the wrong letter."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import _pulsar
import pytest

from pulsar_retry.consumer.handoff import receipts
from pulsar_retry.consumer.handoff.receipts import LetterProducer
from support.waiting import eventually

OK, TIMEOUT, CLOSED = (
    _pulsar.Result.Ok,
    _pulsar.Result.Timeout,
    _pulsar.Result.AlreadyClosed,
)


class Raw:
    """pulsar-client's producer; receipts come when the test says so."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[..., None]] = []
        self.refuses: BaseException | None = None
        self.closed = False

    def send_async(self, _message: Any, callback: Callable[..., None]) -> None:
        """Send."""
        if self.refuses:
            raise self.refuses
        self.callbacks.append(callback)

    def close_async(self, _callback: Callable[..., None]) -> None:
        """Close."""
        self.closed = True

    def answer(self, *results: Any) -> None:
        """Let receipts come, in the order of the sends."""
        for result in results:
            self.callbacks.pop(0)(result, None)


class Flight:
    """A letter on its way."""

    def __init__(self) -> None:
        self.results: list[tuple[Any, str]] = []

    def published(self, result: Any) -> None:
        """Take its receipt."""
        self.results.append((result, threading.current_thread().name))

    @property
    def result(self) -> Any:
        """Its result, as soon as there is one; it must be the only one."""
        eventually(lambda: bool(self.results))
        [(result, _)] = self.results
        return result


@pytest.fixture
def raw() -> Raw:
    """Return pulsar-client's producer."""
    return Raw()


@pytest.fixture
def producer(raw: Raw) -> LetterProducer:
    """Return ours, whose receipts are in order."""
    return LetterProducer(raw, ordered=True)


def send(producer: LetterProducer, count: int) -> list[Flight]:
    """Send letters."""
    flights = [Flight() for _ in range(count)]
    for flight in flights:
        producer.send(object(), flight)
    return flights


def test_each_flight_gets_its_receipt(producer: LetterProducer, raw: Raw) -> None:
    """Also with many under way, and on a thread of ours."""
    flights = send(producer, 100)
    raw.answer(*[OK] * 99)
    assert [OK] * 99 == [flight.result for flight in flights[:99]]
    assert [] == flights[99].results
    raw.answer(OK)
    assert OK == flights[99].result
    assert {"pulsar-retry-receipts"} == {flight.results[0][1] for flight in flights}
    assert not producer.is_given_up


def test_a_failure_is_everybodys(producer: LetterProducer, raw: Raw) -> None:
    """A refusal at once overtakes receipts; no letter may be taken for published by mistake."""
    flights = send(producer, 4)
    raw.callbacks[3](CLOSED, None)  # the last one is refused before the others' receipts
    assert [CLOSED] * 4 == [flight.result for flight in flights]
    assert (True, True) == (producer.is_given_up, raw.closed)
    raw.answer(OK, OK, OK)
    last = send(producer, 1)[0]
    raw.callbacks[-1](CLOSED, None)
    assert CLOSED == last.result
    assert [1, 1, 1, 1] == [len(flight.results) for flight in flights]


def test_what_was_published_before_a_failure_stays_so(producer: LetterProducer, raw: Raw) -> None:
    """Only what is still under way fails."""
    flights = send(producer, 3)
    raw.answer(OK, TIMEOUT)
    assert [OK, TIMEOUT, TIMEOUT] == [flight.result for flight in flights]


def test_a_send_that_raises_leaves_no_gap(producer: LetterProducer, raw: Raw) -> None:
    """The caller gets the error, and the next receipt is not its."""
    first, refused = send(producer, 1)[0], Flight()
    raw.refuses = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        producer.send(object(), refused)
    raw.refuses = None
    second = send(producer, 1)[0]
    raw.answer(OK, OK)
    assert [OK, OK] == [first.result, second.result]
    assert [] == refused.results


def test_without_order_each_receipt_goes_straight_to_its_flight(raw: Raw) -> None:
    """As with partitions: on pulsar-client's thread, in any order."""
    flights = send(LetterProducer(raw, ordered=False), 3)
    for callback, result in zip(reversed(raw.callbacks), (OK, TIMEOUT, OK), strict=True):
        callback(result, None)
    here = threading.current_thread().name
    assert [[(OK, here)], [(TIMEOUT, here)], [(OK, here)]] == [each.results for each in flights]


def test_the_thread_ends_when_idle_and_comes_back(
    producer: LetterProducer, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that retries once a day keeps no thread; one with letters under way does."""
    monkeypatch.setattr(receipts, "_IDLE", 0.01)
    [first] = send(producer, 1)
    taker = producer._taker
    assert taker is not None
    time.sleep(0.05)  # several times as long as idle: it must not end while a letter is under way
    assert taker.is_alive()
    raw.answer(OK)
    assert OK == first.result
    eventually(lambda: not taker.is_alive())
    [second] = send(producer, 1)
    raw.answer(OK)
    assert OK == second.result


def test_receipts_land_together(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many letters under way, what comes soon after the first one is taken with it."""
    monkeypatch.setattr(receipts, "_PAUSE_EACH", 1.0)
    monkeypatch.setattr(receipts, "_PAUSE", 1.0)
    bursts: list[int] = []

    def land(flights: list[Flight]) -> None:
        bursts.append(len(flights))
        receipts.each_landed(flights)

    flights = send(LetterProducer(raw, ordered=True, landed=land), 100)
    raw.answer(*[OK] * 100)
    assert [OK] * 100 == [flight.result for flight in flights]
    assert [100] == bursts


def test_a_thread_that_cannot_be_started(
    producer: LetterProducer, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The letter is not sent, and its sender is told; the next ones get their receipts."""

    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as few:
        few.setattr(receipts.threading, "Thread", NoThread)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="new thread"):
                producer.send(object(), Flight())
    assert [] == raw.callbacks
    flights = send(producer, 3)
    raw.answer(*[OK] * 3)
    assert [OK] * 3 == [flight.result for flight in flights]


def test_a_large_letter_that_is_refused_at_once_fails_no_other(
    producer: LetterProducer, raw: Raw
) -> None:
    """pulsar-client tells its result before those of the letters that are under way."""
    before, large, after = [Flight() for _ in range(3)]
    producer.send(None, before)
    producer.send(None, large, apart=True)
    producer.send(None, after)
    raw.callbacks.pop(1)(_pulsar.Result.MessageTooBig, None)
    raw.answer(OK, OK)
    assert [OK, _pulsar.Result.MessageTooBig, OK] == [
        each.result for each in (before, large, after)
    ]
    assert not producer.is_given_up


def test_a_producer_is_stuck_when_its_connection_is_closed_without_a_receipt(
    producer: LetterProducer,
) -> None:
    """A letter that got its receipt meanwhile, or looks that find it open, say that it is not."""
    looks = [producer.is_stuck("a", closed=True) for _ in range(receipts.CLOSED - 1)]
    assert not any(looks)
    assert not producer.is_stuck("a", closed=False)
    assert not producer.is_stuck("b", closed=True)
    looks = [producer.is_stuck("b", closed=True) for _ in range(receipts.CLOSED - 1)]
    assert [False] * (receipts.CLOSED - 2) + [True] == looks


def test_a_producer_that_connects_late_after_an_outage_is_not_stuck(
    producer: LetterProducer,
) -> None:
    """pulsar-client waits up to as long as the outage took, while the consumer is connected."""
    outage = 100
    for _ in range(outage):
        assert not producer.is_stuck("a", closed=True, reachable=False)
    for _ in range(outage + receipts.CLOSED):
        assert not producer.is_stuck("a", closed=True)
    assert any(producer.is_stuck("a", closed=True) for _ in range(outage + receipts.CLOSED))

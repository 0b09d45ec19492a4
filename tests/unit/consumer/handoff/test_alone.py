"""Letters that go out one in flight at a time, to find the one that the broker refuses."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import _pulsar
import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.consumer.handoff import alone
from pulsar_retry.consumer.handoff.alone import RefusedError, SingleFile, publish_alone
from pulsar_retry.consumer.handoff.producers import Outlet
from pulsar_retry.consumer.handoff.sending import CallbackSender
from pulsar_retry.runtime.clock import Clock
from support.waiting import eventually

OK = _pulsar.Result.Ok
RETRY = "persistent://public/default/orders-billing-RETRY"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "LOOK", 0.001)


class Producer:
    """pulsar-client's producer; its connection is lost with each letter that is too large."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._connected, self.is_closed = broker, True, False

    def send_async(self, message: int, answer: Any) -> None:
        """Send a letter of this size."""
        self._broker.sent.append(message)
        if message > self._broker.limit or self._broker.losses > 0:
            self._broker.losses -= 1
            self._connected = False
        else:
            answer(self._broker.result, None)

    def is_connected(self) -> bool:
        """Tell it."""
        return self._connected

    def close_async(self, _callback: Any) -> None:
        """Close."""
        self.is_closed = True


class Broker:
    """What refuses letters above a size, and opens producers."""

    limit, losses, result = 10, 0, OK

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.opened: list[Producer] = []
        self.alone = threading.Lock()

    def open(self) -> Producer:
        """Open a producer."""
        self.opened.append(Producer(self))
        return self.opened[-1]

    def open_another(self, _outlet: Outlet) -> CallbackSender:
        """Open what sends."""
        return CallbackSender(self.open(), lambda _: None)


@pytest.mark.parametrize("losses", [0, 1])
def test_a_lost_connection_is_no_refusal(losses: int) -> None:
    """The letter is sent again by another producer, which gets the receipt."""
    broker = Broker()
    broker.losses = losses
    result, raw = publish_alone(broker.open, lambda: 1, lambda: False)
    assert (OK, broker.opened[-1], losses + 1) == (result, raw, len(broker.sent))
    assert [True] * losses + [False] == [each.is_closed for each in broker.opened]


def test_a_letter_that_costs_two_connections_is_refused() -> None:
    """No producer goes on sending it."""
    broker = Broker()
    with pytest.raises(RefusedError):
        publish_alone(broker.open, lambda: 11, lambda: False)
    assert [True, True] == [each.is_closed for each in broker.opened]


def test_nobody_waits_any_longer() -> None:
    """A letter without an answer is not waited for when its time is over."""
    silent = SimpleNamespace(
        send_async=lambda *_: None, is_connected=lambda: True, close_async=lambda _: None
    )
    until = time.monotonic() + 0.01
    result, raw = publish_alone(lambda: silent, lambda: 1, lambda: time.monotonic() > until)
    assert (_pulsar.Result.Timeout, None) == (result, raw)


class Flight:
    """A letter in flight, and its hand-off."""

    outlet: Any = None

    def __init__(self, size: int, delay: float = 0.0) -> None:
        self.size, self.hand_off = size, self
        self.letter = SimpleNamespace(delay=delay, properties={})
        self.is_over = False
        self.ends: list[Any] = []

    def has_receipt(self, result: Any) -> None:
        """Take the receipt."""
        self.ends.append(result)

    def finish(self, _flights: list[Any], error: Any) -> None:
        """Take the error."""
        self.ends.append(error)


@pytest.fixture
def broker() -> Broker:
    """Give a broker."""
    return Broker()


@pytest.fixture
def outlet(monkeypatch: pytest.MonkeyPatch) -> Outlet:
    """Give the way to the topic of all letters."""
    outlet = Outlet(RETRY, pulsar.schema.BytesSchema(), dead=False, named=False, keeper=None)
    monkeypatch.setattr(Flight, "outlet", outlet)
    return outlet


@pytest.fixture
def now() -> list[float]:
    """Give the time."""
    return [1000.0]


@pytest.fixture
def file(broker: Broker, outlet: Outlet, now: list[float]) -> Iterator[SingleFile]:
    """Give the single file of a hand-off whose letters all go to one topic."""
    clock = Clock()
    clock.monotonic = lambda: now[0]  # type: ignore[method-assign]
    file = SingleFile(broker, lambda flight: flight.size, clock)  # type: ignore[arg-type]
    yield file
    file.close()


def ended(file: SingleFile, *flights: Flight) -> list[Any]:
    """Publish letters and return how each of them has ended."""
    file.add(flights)  # type: ignore[arg-type]
    eventually(lambda: not file._left)
    return [end if isinstance(end, Exception) else end.name for [end] in (f.ends for f in flights)]


def test_the_one_that_is_refused_fails(file: SingleFile, broker: Broker, outlet: Outlet) -> None:
    """By name; those before and behind it are published, by producers that are closed then."""
    first, refused, last = ended(file, Flight(1), Flight(11, delay=7.0), Flight(2))
    assert ["Ok", "Ok"] == [first, last]
    assert isinstance(refused, pr.LetterPublishError)
    assert f"{RETRY}: the broker refuses the letter (11 bytes with properties, delay 7 s)" in str(
        refused
    )
    assert [1, 11, 11, 2] == broker.sent
    eventually(lambda: all(each.is_closed for each in broker.opened))
    assert outlet.refusal is not None


def test_what_is_alike_is_answered_at_once(
    file: SingleFile, broker: Broker, outlet: Outlet, now: list[float]
) -> None:
    """Neither shorter nor smaller; after a growing pause one is tried."""
    pauses = []
    for _ in range(5):
        first, alike, shorter, smaller = ended(
            file, Flight(12, 7.0), Flight(13, 7.0), Flight(9, 6.0), Flight(9, 7.0)
        )
        assert first is alike
        assert ["Ok", "Ok"] == [shorter, smaller]
        assert [12, 12, 9, 9] == broker.sent[-4:]
        assert outlet.refusal is not None
        pauses.append(outlet.refusal.retry_at - now[0])
        now[0] = outlet.refusal.retry_at
    assert pauses == sorted(set(pauses))


def test_a_limit_that_is_lifted(
    file: SingleFile, broker: Broker, outlet: Outlet, now: list[float]
) -> None:
    """The first letter that is published ends the refusal."""
    ended(file, Flight(12))
    assert outlet.is_suspect(Flight(12))  # type: ignore[arg-type]
    broker.limit = 100
    now[0] += 60
    assert ["Ok"] == ended(file, Flight(13))
    assert not outlet.is_suspect(Flight(12))  # type: ignore[arg-type]


def test_what_was_given_up_is_not_published(file: SingleFile, broker: Broker) -> None:
    """Its message is redelivered."""
    flight = Flight(1)
    flight.is_over = True
    file.add([flight])  # type: ignore[list-item]
    eventually(lambda: not file._left)
    assert ([], []) == (broker.sent, flight.ends)


def test_letters_of_another_topic(file: SingleFile, broker: Broker) -> None:
    """They have a producer of their own; the one before it is closed."""
    other = Flight(2)
    other.outlet = Outlet("other", pulsar.schema.BytesSchema(), False, False, None)
    assert ["Ok"] * 3 == ended(file, Flight(1), Flight(1), other)
    assert 2 == len(broker.opened)
    eventually(lambda: all(each.is_closed for each in broker.opened))


def test_after_the_end(file: SingleFile) -> None:
    """No letter is taken, because nobody would publish it."""
    file.close()
    with pytest.raises(pr.ConsumerClosedError):
        file.add([Flight(1)])  # type: ignore[list-item]


def test_a_producer_that_cannot_be_opened(file: SingleFile, broker: Broker) -> None:
    """Each letter has the error."""

    def refuse(_outlet: Outlet) -> CallbackSender:
        raise pr.LetterPublishError(RETRY, pulsar.ConnectError())

    broker.open_another = refuse  # type: ignore[method-assign]
    ends = ended(file, Flight(1), Flight(2))
    assert [pr.LetterPublishError] * 2 == [type(each) for each in ends]

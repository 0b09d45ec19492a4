"""How many of the received messages a consumer checks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import _pulsar
import pulsar
import pytest

from pulsar_retry.consumer.in_hand import InHand
from pulsar_retry.consumer.receiving import QUIET, Receiving
from pulsar_retry.consumer.stream import DEFAULT_BATCH_LIMITS
from pulsar_retry.letters.plan import Plan
from pulsar_retry.policy.backoff import Fixed, Levels
from pulsar_retry.runtime.clock import SYSTEM
from pulsar_retry.wire.names import Naming
from support.consumer.nacking import Id

#: A message that was delivered for the first time.
RAW: Any = SimpleNamespace(message_id=lambda: pulsar.MessageId.earliest, redelivery_count=lambda: 0)


class Received:
    """Receives batches at a rate, and counts the messages that are checked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have a consumer of a plain subscription."""
        self.plan = plan = Plan(
            topic="orders",
            subscription="billing",
            shared=True,
            policy=None,
            topics=None,
            naming=Naming.PULSAR,
            levels=Levels(),
            nack_backoff=Fixed(60),
            max_pending_letters=1_000,
            letter_send_timeout=30.0,
        )
        self.seconds = 100.0
        self.timer: Any = SimpleNamespace(now=lambda: self.seconds, check_later=lambda *_: None)
        watch: Any = None  # nothing is acknowledged
        clock: Any = SimpleNamespace(time=SYSTEM.time, sleep=self.sleep)
        self.waits: list[float] = []
        self.in_hand = InHand(plan, self.timer, clock, watch)
        self.checked: list[Any] = []

        def saw(message_id: Any) -> bool:
            self.checked.append(message_id)
            return False

        monkeypatch.setattr(self.in_hand.main, "saw", saw)

    def sleep(self, seconds: float) -> None:
        """Note a wait, in which another thread settles a message."""
        self.waits.append(seconds)
        self.in_hand.settled += 1

    def batches(self, count: int, *, size: int, per_second: float) -> int:
        """Receive batches of *size* messages; return how many messages were checked."""
        before = len(self.checked)
        for _ in range(count):
            self.seconds += size / per_second
            self.in_hand.took([RAW] * size)
        return len(self.checked) - before


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Received:
    """Return a consumer that has received nothing."""
    return Received(monkeypatch)


@pytest.mark.parametrize("size", [1, 10, 100])
def test_at_a_low_rate_each_message_is_checked(received: Received, size: int) -> None:
    """A message that a nack has requested is recognized when it comes."""
    assert 1_000 == received.batches(1_000 // size, size=size, per_second=50)


@pytest.mark.parametrize("size", [1, 10, 100])
def test_at_a_high_rate_few_messages_are_checked(received: Received, size: int) -> None:
    """A check of each message would cost more than receiving it, also in batches."""
    received.batches(20_000 // size, size=size, per_second=100_000)
    assert 2_000 > received.batches(100_000 // size, size=size, per_second=100_000)


def test_after_a_burst_each_message_is_checked_again(received: Received) -> None:
    """A burst does not hide the messages behind it."""
    received.batches(1_000, size=100, per_second=100_000)
    received.batches(3, size=100, per_second=50)
    assert 500 == received.batches(5, size=100, per_second=50)


@pytest.mark.parametrize("count", [0, 1])
def test_a_nacked_message_that_comes_early_is_recognized(received: Received, count: int) -> None:
    """Also behind a burst, and if its topic has moved, so that the broker counts from 0 again."""
    received.batches(20_000, size=1, per_second=100_000)
    nacked = Id(1)
    received.in_hand.redeliver(nacked, 60.0)
    again = SimpleNamespace(message_id=lambda: nacked, redelivery_count=lambda: count)
    received.in_hand.took([again])
    assert received.in_hand.pending_nacks == 0
    assert received.in_hand.unsettled == 20_000


def test_a_seek_waits_for_each_acknowledgement(received: Received) -> None:
    """Also for those before another request, and those that were made while it waited."""
    in_hand = received.in_hand
    in_hand.await_acknowledgements()
    assert [] == received.waits
    received.batches(2, size=1, per_second=50)
    in_hand.settled += 2
    in_hand.redeliver_everything()
    for count in (1, 2):
        in_hand.await_acknowledgements()
        assert [pytest.approx(0.2)] * count == received.waits


def test_a_hand_off_that_fails_hides_no_acknowledgement(received: Received) -> None:
    """A seek waits for one that came after a request for everything, as the failure did."""
    in_hand = received.in_hand
    in_hand.main.raw = SimpleNamespace(redeliver_unacknowledged_messages=lambda: None)
    received.batches(3, size=1, per_second=50)
    in_hand.leaves(raw := _pulsar.MessageBuilder().build())
    in_hand.redeliver_everything()
    in_hand.hand_off_failed(raw)
    received.seconds += 1
    in_hand.settled += 1
    in_hand.await_acknowledgements()
    assert [pytest.approx(0.2)] == received.waits


def test_what_was_handed_on_is_an_acknowledgement(received: Received) -> None:
    """It is sent late, too, however long the letter was under way."""
    in_hand = received.in_hand
    in_hand.main.raw = SimpleNamespace()
    received.batches(2, size=1, per_second=50)
    in_hand.leaves(RAW)
    in_hand.await_acknowledgements()
    received.waits.clear()
    received.seconds += 30
    in_hand.handed_on([SimpleNamespace(raw=RAW, source=in_hand.main.raw)])  # type: ignore[list-item]
    in_hand.await_acknowledgements()
    assert [pytest.approx(0.2)] == received.waits


def test_letters_under_way_while_everything_is_redelivered(received: Received) -> None:
    """Their messages are unacknowledged until they are stored, and only then."""
    in_hand = received.in_hand
    in_hand.main.raw = SimpleNamespace()
    received.batches(3, size=1, per_second=50)
    in_hand.leaves(RAW)
    in_hand.all_redelivered()
    assert 1 == in_hand.unsettled
    in_hand.handed_on([SimpleNamespace(raw=RAW, source=in_hand.main.raw)])  # type: ignore[list-item]
    received.batches(2, size=1, per_second=50)
    assert 2 == in_hand.unsettled


def test_a_request_for_everything_waits_for_what_is_on_its_way(received: Received) -> None:
    """Also the second of two in succession: acknowledged messages would come again."""
    in_hand, asked = received.in_hand, list[float]()
    in_hand.main.raw = SimpleNamespace(
        redeliver_unacknowledged_messages=lambda: asked.append(received.seconds)
    )
    received.batches(2, size=1, per_second=50)
    in_hand.settled += 2
    for _ in range(2):
        in_hand.redeliver_everything()
    assert [] == asked
    received.seconds += 0.2
    in_hand.redeliver_everything()
    assert [received.seconds] == asked


def test_a_message_that_leaves_is_unsettled(received: Received) -> None:
    """Also if an earlier one is settled after the broker was asked for both again."""
    in_hand = received.in_hand
    in_hand.took([RAW] * 2)
    in_hand.all_redelivered()
    in_hand.settled += 1  # the acknowledgement of the first one
    in_hand.took([RAW])
    in_hand.leaves(RAW)
    assert 1 == in_hand.unsettled


def test_lost_chunks_are_requested_after_what_is_on_its_way(received: Received) -> None:
    """A message that was in hand for long, and was acknowledged just now, would come again."""
    in_hand, asked = received.in_hand, list[float]()
    in_hand.main.raw = SimpleNamespace(
        redeliver_unacknowledged_messages=lambda: asked.append(received.seconds)
    )
    outbox: Any = None  # nothing is handed on
    receiving = Receiving(
        in_hand,
        outbox,
        plan=received.plan,
        schema=None,
        timer=received.timer,
        clock=SYSTEM,
        batch_limits=DEFAULT_BATCH_LIMITS,
        polls=True,
    )
    receiving.stream = SimpleNamespace()  # type: ignore[assignment]
    in_hand.took([RAW])
    for settled in (0, 0, 1):  # it is new, then in hand, then not any more
        in_hand.settled, receiving.stream.ran_dry = settled, True
        receiving.check()
        in_hand.main.check()
        assert [] == asked
        received.seconds += 0 if settled else QUIET
    received.seconds += 0.2
    in_hand.main.check()
    assert [received.seconds] == asked

"""How many of the received messages a consumer checks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

from pulsar_retry.consumer.in_hand import InHand
from pulsar_retry.letters.plan import Plan
from pulsar_retry.policy.backoff import Fixed
from pulsar_retry.policy.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from pulsar_retry.runtime.clock import SYSTEM
from pulsar_retry.wire.names import Naming


class Received:
    """Receives batches at a rate, and counts the messages that are checked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have a consumer of a plain subscription."""
        plan = Plan(
            topic="orders",
            subscription="billing",
            shared=True,
            policy=None,
            topics=None,
            naming=Naming.PULSAR,
            levels=DelayLevels.parse(DEFAULT_DELAY_LEVELS),
            nack_backoff=Fixed(60),
            max_pending_letters=1_000,
            letter_send_timeout=30.0,
        )
        self.seconds = 100.0
        timer: Any = SimpleNamespace(now=lambda: self.seconds)
        client: Any = None
        self.in_hand = InHand(client, plan, timer, SYSTEM)
        self.checked: list[Any] = []
        monkeypatch.setattr(self.in_hand, "_check_message", self.checked.append)

    def batches(self, count: int, *, size: int, per_second: float) -> int:
        """Receive batches of *size* messages; return how many messages were checked."""
        before = len(self.checked)
        for _ in range(count):
            self.seconds += size / per_second
            self.in_hand.took([pulsar.MessageId.earliest] * size)
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


def test_after_a_failed_hand_off_each_message_is_checked_for_a_while(received: Received) -> None:
    """Its message can come before it is requested, and must not be counted twice."""
    received.batches(20_000, size=1, per_second=100_000)
    received.in_hand.hand_off_failed()
    assert 1_000 == received.batches(1_000, size=1, per_second=100_000)
    received.seconds += 60
    received.batches(20_000, size=1, per_second=100_000)
    assert 2_000 > received.batches(100_000, size=1, per_second=100_000)

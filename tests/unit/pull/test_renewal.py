"""When nothing is left of a lost connection, by what pulsar-client and the broker say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import _pulsar
import pytest

from pulsar_retry.pull.engine.connection import Renewal

OK = _pulsar.Result.Ok


class Raw:
    """A raw consumer that answers when it is told to."""

    def __init__(self) -> None:
        self.connected = False
        self.asked: list[Callable[..., None]] = []

    def is_connected(self) -> bool:
        """Tell what the test says."""
        return self.connected

    def get_last_message_id_async(self, answer: Callable[..., None]) -> None:
        """Keep *answer*."""
        self.asked.append(answer)


class Case:
    """A connection that is lost, and a clock."""

    def __init__(self) -> None:
        self.raw = Raw()
        self.now = 0.0
        self.overs = 0
        self.renewal = Renewal(self.raw, lambda: self.now, self._over)
        assert self.renewal.is_over()
        self.renewal.lost()

    def _over(self) -> None:
        self.overs += 1

    def look(self) -> bool:
        """Look a second later."""
        self.now += 1.0
        return self.renewal.is_over()

    def answer(self, result: Any) -> None:
        """Answer the last request."""
        self.raw.asked.pop()(result, None)


@pytest.fixture
def case() -> Case:
    """Give a connection that is lost."""
    return Case()


def test_it_is_over_when_the_broker_knows_the_subscription(case: Case) -> None:
    """Not as soon as there is a connection, and not before: the broker refuses meanwhile."""
    assert not case.look()
    case.raw.connected = True
    assert not case.look()
    assert len(case.raw.asked) == 2
    case.answer(_pulsar.Result.BrokerMetadataError)
    assert not case.look()
    assert len(case.raw.asked) == 2
    case.answer(OK)
    assert case.renewal.is_over()
    assert case.overs == 1


def test_one_request_at_a_time(case: Case) -> None:
    """One with a connection, and one that waits for one."""
    for _ in range(5):
        assert not case.look()
    assert len(case.raw.asked) == 1


def test_an_answer_from_before_another_loss_counts_for_nothing(case: Case) -> None:
    """It was about the connection that is lost now."""
    case.raw.connected = True
    assert not case.look()
    case.renewal.lost()
    case.answer(OK)
    assert not case.look()
    assert case.overs == 0


def test_a_closed_consumer_has_nothing_left(case: Case) -> None:
    """So nobody waits for it for ever."""
    assert not case.look()
    case.answer(_pulsar.Result.AlreadyClosed)
    assert case.renewal.is_over()

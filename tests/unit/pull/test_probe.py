"""Why a connection is lost, in virtual time and without a broker."""

from __future__ import annotations

from concurrent.futures import Future

import pulsar
import pytest

from pulsar_retry.pull.engine.connection import ConnectionProbe

NOBODY = pulsar.TopicNotFound("Pulsar error: TopicNotFound")
AWAY = pulsar.ConnectError("Pulsar error: ConnectError")
THERE = None


class Broker:
    """Says nothing until it is told to; `times` says when it was asked."""

    def __init__(self) -> None:
        self.now = 100.0
        self.times: list[float] = []
        self.answer: Future[None] = Future()
        self.probe = ConnectionProbe(self._ask, lambda: self.now)

    def _ask(self) -> Future[None]:
        self.times.append(self.now - 100)
        self.answer = Future()
        return self.answer

    def says(self, error: Exception | None, at: float | None = None) -> None:
        """Have it asked, and looked at what it says to that."""
        self.now = self.now if at is None else 100 + at
        self.probe.look()
        if error is None:
            self.answer.set_result(None)
        else:
            self.answer.set_exception(error)
        self.probe.look()

    def look(self, seconds: float) -> None:
        """Look every quarter of a second, so long."""
        for _ in range(round(4 * seconds)):
            self.probe.look()
            self.now += 0.25


@pytest.fixture
def asked() -> Broker:
    """Give a broker that is asked."""
    return Broker()


def test_it_is_not_waited_for(asked: Broker) -> None:
    """Nor asked twice: an answer may take minutes."""
    asked.look(60)
    assert [0] == asked.times


@pytest.mark.parametrize("said", [AWAY, THERE])
def test_it_is_asked_less_and_less_often(asked: Broker, said: Exception | None) -> None:
    """Whether it is away, or there and the connection is not."""
    for moment in (0, 1, 3, 7, 15, 31, 61, 91):
        asked.look(100 + moment - asked.now)
        asked.says(said, at=moment)
    assert [0, 1, 3, 7, 15, 31, 61, 91] == asked.times


def test_a_topic_that_is_gone(asked: Broker) -> None:
    """It is, after the fifth time in a row; a broker that starts has none for some seconds."""
    for moment, said in ((0, NOBODY), (1, NOBODY), (3, AWAY), (60, NOBODY), (61, NOBODY)):
        asked.says(said, at=moment)
    asked.says(NOBODY, at=63)
    asked.says(NOBODY, at=67)
    with pytest.raises(pulsar.TopicNotFound):
        asked.says(NOBODY, at=75)
    assert [0, 1, 3, 60, 61, 63, 67, 75] == asked.times


def test_a_topic_that_is_there_again(asked: Broker) -> None:
    """What was said before does not count: it moved, or was made anew."""
    again = (
        lambda: asked.says(THERE, at=100),
        asked.probe.doubt,  # a message has come
        asked.probe.end,  # the connection is back
    )
    for number, there in enumerate(again):
        for moment in range(0, 80, 20):
            asked.says(NOBODY, at=200 * number + moment)
        there()
    asked.says(NOBODY, at=600)


def test_an_answer_that_comes_too_late(asked: Broker) -> None:
    """When the connection is back, and lost again, the broker is asked anew, and at once."""
    asked.probe.look()
    late = asked.answer
    asked.probe.end()
    asked.says(AWAY)
    late.set_exception(NOBODY)
    asked.look(1.25)
    assert [0, 0, 1] == asked.times

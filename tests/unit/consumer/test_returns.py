"""Which redeliveries count as attempts of a message."""

from __future__ import annotations

import attrs
import pytest

from pulsar_retry.consumer.returns import Returns
from support.consumer.nacking import Id


@attrs.frozen
class Raw:
    """A message, as pulsar-client gives it."""

    number: int
    count: int

    def message_id(self) -> Id:
        return Id(self.number)

    def redelivery_count(self) -> int:
        return self.count


def test_what_the_application_nacks_counts() -> None:
    """Only that."""
    returns = Returns(lambda: 0.0)
    returns.given_back(Raw(1, 0))
    assert 3 == returns.attempts_before(Raw(2, 3))


def test_what_is_given_back_does_not_count() -> None:
    """Neither in this delivery nor in later ones."""
    returns = Returns(lambda: 0.0)
    returns.given_back(Raw(1, 2))
    assert [2, 2, 3] == [returns.attempts_before(Raw(1, count)) for count in (2, 3, 4)]


def test_a_batch_is_redelivered_once() -> None:
    """However many of its messages are given back."""
    returns = Returns(lambda: 0.0)
    for _ in range(3):
        returns.given_back(Raw(1, 0))
    assert 1 == returns.attempts_before(Raw(1, 2))


def test_what_is_redelivered_with_a_chunked_message_does_not_count() -> None:
    """Each time: it lies between the chunks."""
    returns = Returns(lambda: 0.0)
    returns.not_retried([(0, 1), (0, 2)])
    returns.not_retried([(0, 1)])
    assert 1 == returns.attempts_before(Raw(1, 3))


def test_where_the_broker_does_not_count_nacks_do() -> None:
    """Of each message; what comes back with it, or because its letter failed, does not count."""
    returns = Returns(lambda: 0.0)
    for _ in range(2):
        returns.nacked(Id(1))
    returns.failed(Raw(1, 0))
    assert [2, 0] == [returns.attempts_before(Raw(number, 0)) for number in (1, 2)]


def test_the_broker_begins_anew() -> None:
    """When it forgets redeliveries, so does the consumer."""
    returns = Returns(lambda: 0.0)
    returns.given_back(Raw(1, 2))
    returns.given_back(Raw(1, 0))
    assert 1 == returns.attempts_before(Raw(1, 2))


@pytest.mark.parametrize("is_acknowledged", [True, False])
def test_one_copy_is_dropped(is_acknowledged: bool) -> None:
    """The one that was requested; if its letter is still on its way, it is not acknowledged."""
    returns = Returns(lambda: 0.0)
    returns.settled(Id(1), is_acknowledged=is_acknowledged)
    assert returns.is_copy(Raw(2, 1)) is None
    assert returns.is_copy(Raw(1, 1)) is is_acknowledged
    assert returns.is_copy(Raw(1, 2)) is None


@pytest.mark.parametrize("why", ["count", "nack", "seek", "time"])
def test_what_is_wanted_again_is_no_copy(why: str) -> None:
    """After another process's seek the broker counts anew; long afterwards, anything can be."""
    now = 0.0
    returns = Returns(lambda: now, 10.0)
    returns.settled(Id(1), is_acknowledged=True)
    if why == "nack":
        returns.comes_again(Id(1))
    elif why == "seek":
        returns.moved()
    elif why == "time":
        now = 71.0
    assert returns.is_copy(Raw(1, 0 if why == "count" else 1)) is None
    assert returns.is_copy(Raw(1, 1)) is None

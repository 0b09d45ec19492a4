"""Which redeliveries count as attempts of a message."""

from __future__ import annotations

import _pulsar
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
    returns.settled(Id(1), is_acknowledged=is_acknowledged, was_requested=True)
    assert returns.is_copy(Raw(2, 1)) is None
    assert returns.is_copy(Raw(1, 1)) is is_acknowledged
    assert returns.is_copy(Raw(1, 2)) is None


@pytest.mark.parametrize("why", ["count", "nack", "seek", "time"])
def test_what_is_wanted_again_is_no_copy(why: str) -> None:
    """After another process's seek the broker counts anew; long afterwards, anything can be."""
    now = 0.0
    returns = Returns(lambda: now, 10.0)
    returns.settled(Id(1), is_acknowledged=True, was_requested=True)
    if why == "nack":
        returns.comes_again(Id(1))
    elif why == "seek":
        returns.moved()
    elif why == "time":
        now = 71.0
    assert returns.is_copy(Raw(1, 0 if why == "count" else 1)) is None
    assert returns.is_copy(Raw(1, 1)) is None


def of_batch(index: int) -> _pulsar.MessageId:
    """Return the id of a message in a batch of three."""
    return _pulsar.MessageId.deserialize(bytes([1 << 3, 5, 2 << 3, 7, 4 << 3, index, 6 << 3, 3]))


@attrs.frozen
class BatchRaw:
    """A message of that batch, which is redelivered."""

    index: int

    def message_id(self) -> _pulsar.MessageId:
        return of_batch(self.index)

    def redelivery_count(self) -> int:
        return 1


@pytest.mark.parametrize("was_requested", [True, False])
def test_a_batch_is_forgotten_when_all_of_it_is_acknowledged(was_requested: bool) -> None:
    """Nothing of it can come again, unless a copy was requested before."""
    returns = Returns(lambda: 0.0)
    for index, is_acknowledged in ((0, True), (1, False), (2, True)):
        requested = was_requested and index == 1
        returns.settled(of_batch(index), is_acknowledged=is_acknowledged, was_requested=requested)
    assert returns.is_copy(BatchRaw(0)) is True
    returns.settled(of_batch(0), is_acknowledged=True, was_requested=False)
    returns.settled(of_batch(1), is_acknowledged=True, was_requested=False)  # its letter is out
    assert [was_requested or None] * 3 == [returns.is_copy(BatchRaw(each)) for each in range(3)]

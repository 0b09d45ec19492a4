"""What a process remembers of its letters, without a broker."""

from __future__ import annotations

import itertools

import pytest

import pulsar_retry as pr
from pulsar_retry.pull.engine.own_letters import OwnLetters, Record
from pulsar_retry.testing import MemoryBroker


class Clock:
    """The two clocks of a machine: one that may be wrong, and one that begins anywhere."""

    now = 1000.0
    is_off_by = 0.0

    def wall(self) -> float:
        """Return the seconds since 1970."""
        return self.now + self.is_off_by

    def steady(self) -> float:
        """Return the seconds since the machine was started."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Give clocks that stand still."""
    return Clock()


def of_clock(clock: Clock, most: int = 100) -> OwnLetters:
    """Return the memory of a process."""
    return OwnLetters(most, clock=clock.wall, steady=clock.steady)


@pytest.fixture
def own(clock: Clock) -> OwnLetters:
    """Give a process that has published the letter after two failures at the time 1000."""
    own = of_clock(clock)
    publish(own, "a", 2, delay=5.0)
    return own


def fail(
    own: OwnLetters, key: str, failures: int, *, made_from: int = 0, delay: float = 0.0
) -> Record:
    """Have an attempt fail."""
    return own.failed(key, failures, delay, {"FAILURE_STAMP": str(made_from)})


def publish(
    own: OwnLetters,
    key: str,
    failures: int,
    *,
    made_from: int = 0,
    delay: float = 0.0,
    is_dead: bool = False,
) -> int:
    """Have an attempt fail and its letter published; return the stamp."""
    record = fail(own, key, failures, made_from=made_from, delay=delay)
    own.published(record, is_dead=is_dead)
    return record.stamp


def at(seconds: float) -> int:
    """Return the stamp of a letter that another process made."""
    return round(seconds * 1e6)


@pytest.mark.parametrize("failures", [1, 2])
def test_an_older_letter_of_another_process_is_superfluous(own: OwnLetters, failures: int) -> None:
    """The newer one stands for the same attempts, and is still to come."""
    assert own.supersede("a", failures, at(999.9))


@pytest.mark.parametrize(
    ("key", "failures", "time", "why"),
    [
        ("a", 3, 999.9, "it is at a later attempt"),
        ("a", 2, 1000.0, "it is not older"),
        ("a", 2, 1000.1, "it is newer: the subscription was set back, perhaps"),
        ("b", 2, 999.9, "it is another message's"),
    ],
)
def test_what_is_needed(own: OwnLetters, key: str, failures: int, time: float, why: str) -> None:
    """When in doubt it is handled: a duplicate beats a loss."""
    assert not own.supersede(key, failures, at(time)), why


def test_whose_letter_it_is_must_be_known(own: OwnLetters) -> None:
    """Java's says nothing."""
    assert not own.supersede("a", 2, None)


def test_the_older_of_its_own_letters_is_superfluous(own: OwnLetters) -> None:
    """In the order in which they were made; the last one never is."""
    older, newer = fail(own, "a", 2), fail(own, "a", 2)
    for record in (older, newer, older):
        own.published(record)
    assert own.supersede("a", 2, older.stamp)
    assert not own.supersede("a", 1, newer.stamp)


def test_a_clock_that_was_set_back_makes_no_letter_old(own: OwnLetters, clock: Clock) -> None:
    """It was made later all the same."""
    clock.is_off_by = -3600.0
    newer = publish(own, "a", 2)
    assert not own.supersede("a", 2, newer)
    assert own.supersede("a", 2, at(1000.0))


def test_a_deferred_letter_is_newer_than_the_one_before(own: OwnLetters, clock: Clock) -> None:
    """Another process whose clock is behind has deferred our letter: the count is the same."""
    last = publish(own, "a", 2)
    clock.is_off_by = -3600.0
    deferred = publish(of_clock(clock), "a", 2, made_from=last)
    assert not own.supersede("a", 2, deferred)


def test_attempts_go_on_from_what_is_known(own: OwnLetters, clock: Clock) -> None:
    """Of a message that comes twice after a kill; not of one that comes much later on purpose."""
    assert (2, 0) == (own.failures("a"), own.failures("b"))
    fail(own, "a", 1, delay=5.0)
    assert 2 == own.failures("a")
    clock.now += 34.9
    assert 2 == own.failures("a")
    clock.now += 0.1
    assert 0 == own.failures("a")
    fail(own, "a", 1)
    assert 1 == own.failures("a")


def test_what_could_not_be_published_is_no_attempt_more(own: OwnLetters) -> None:
    """The message comes back with its own count, and has its retries."""
    own.forget(fail(own, "a", 3))
    assert 0 == own.failures("a")


def test_a_copy_whose_letter_was_published_is_not_forgotten(own: OwnLetters) -> None:
    """Only the letter of the other copy, which failed before, was not published."""
    third = fail(own, "a", 3)
    publish(own, "a", 4)
    own.forget(third)
    assert 4 == own.failures("a")


def test_stamps_of_letters_that_are_not_out_yet(own: OwnLetters, clock: Clock) -> None:
    """Two copies fail at one moment, or the clock is set back between: the order stays."""
    first = fail(own, "a", 2)
    clock.is_off_by = -3600.0
    second = fail(own, "a", 2)
    own.published(second)
    own.published(first)
    assert own.supersede("a", 2, first.stamp)
    assert not own.supersede("a", 2, second.stamp)


def test_a_message_is_known_until_its_letters_are_out(own: OwnLetters, clock: Clock) -> None:
    """And half a minute longer, also when it is dead; then somebody may want it again."""
    left = publish(own, "a", 3, delay=5.0)
    assert not own.is_dead("a")
    dead = publish(own, "a", 4, is_dead=True)
    clock.now += 34.9
    assert own.is_dead("a")
    assert own.supersede("a", 3, left)
    assert not own.supersede("a", 4, dead)
    clock.now += 0.1
    assert not own.is_dead("a")
    assert not own.supersede("a", 3, left)


def test_memory_is_bounded(clock: Clock) -> None:
    """The oldest are forgotten: then both letters are handled."""
    own = of_clock(clock, most=2)
    assert own.is_empty
    for key in ("a", "b", "a", "c"):
        publish(own, key, 1)
    assert not own.is_empty
    assert [True, False, True] == [own.supersede(key, 1, at(0.0)) for key in "abc"]


def test_an_immediate_retry_takes_half_a_second(memory: MemoryBroker) -> None:
    """By then, the acknowledgement of what it was made of has reached the broker."""
    began: list[float] = []

    def fail(_message: object) -> None:
        began.append(memory.clock.time())
        raise TimeoutError

    policy = pr.RetryPolicy(max_attempts=3, backoff=pr.Immediate())
    with memory.client().subscriber("orders", "billing", fail, retry_policy=policy):
        memory.send("orders", b"order")
        memory.join("orders", "billing")
    assert [0.5, 0.5] == pytest.approx([b - a for a, b in itertools.pairwise(began)], abs=0.01)


def test_copies_come_only_after_a_pause(own, clock):
    """However long it was, and for a minute; a seek later on brings messages that are needed."""
    publish(own, "dead", 1, is_dead=True)
    fail(own, "without letter", 1)
    assert not own.has_copies
    own.closed()
    clock.now += 3600
    own.opened()
    assert own.has_copies
    names = ("dead", "without letter", "other")
    assert [True, False, False] == [own.is_copy(name) for name in names]
    clock.now += 59
    own.closed()  # what was a copy then still is one
    clock.now += 3600
    own.opened()
    assert own.is_copy("dead")
    clock.now += 61
    assert not own.is_copy("dead")
    assert not own.has_copies
    own.closed()
    own.opened()
    assert not own.is_copy("dead")


def test_what_has_a_retry_letter_is_no_copy(own):
    """A seek may have removed the letter."""
    own.closed()
    own.opened()
    assert not own.is_copy("a")


def test_nothing_is_a_copy_after_a_pause_by_hand(own):
    """Also not what was one after the backoff before it: perhaps there was a seek."""
    publish(own, "dead", 1, is_dead=True)
    own.closed()
    own.opened()
    own.closed(by_hand=True)
    own.opened()
    assert not own.is_copy("dead")


def test_what_failed_before_a_pause_is_tried_after_the_others(own, clock):
    """Dead or not, and its count goes on; a pause by hand may be for a seek."""
    own.closed()
    clock.now += 3600
    own.opened()
    assert (True, False, 2) == (own.has_failed("a"), own.has_failed("other"), own.failures("a"))
    clock.now += 61
    assert not own.has_failed("a")
    fail(own, "b", 1)
    own.closed(by_hand=True)
    own.opened()
    assert not own.has_failed("b")

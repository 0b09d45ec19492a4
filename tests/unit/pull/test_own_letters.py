"""What a process remembers of its letters, without a broker."""

from __future__ import annotations

import pytest

from pulsar_retry.pull.engine.own_letters import OwnLetters, Stamp

ANOTHER = Stamp("another", 7)


class Clock:
    """A clock that goes when it is told."""

    now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Give a clock that stands still."""
    return Clock()


@pytest.fixture
def own(clock: Clock) -> OwnLetters:
    """Give a process that has published the letter after two failures at the time 100."""
    own = OwnLetters(clock=clock)
    publish(own, "a", 2, at=100.0, delay=5.0)
    return own


def publish(
    own: OwnLetters, key: str, failures: int, *, at: float, delay: float = 0.0, dead: bool = False
) -> Stamp:
    """Have an attempt fail and its letter published; return the stamp."""
    stamp = own.stamp()
    own.failed(key, failures, delay)
    own.published(key, stamp, at=at, dead=dead)
    return stamp


@pytest.mark.parametrize("failures", [1, 2])
def test_an_older_letter_of_another_process_is_superfluous(own: OwnLetters, failures: int) -> None:
    """The newer one stands for the same attempts, and is still to come."""
    assert own.supersede("a", failures, 99.9, ANOTHER)


@pytest.mark.parametrize(
    ("key", "failures", "time", "why"),
    [
        ("a", 3, 99.9, "it is at a later attempt"),
        ("a", 2, 100.0, "it is not older"),
        ("a", 2, 100.1, "it is newer: the subscription was set back, perhaps"),
        ("b", 2, 99.9, "it is another message's"),
    ],
)
def test_what_is_needed(own: OwnLetters, key: str, failures: int, time: float, why: str) -> None:
    """When in doubt it is handled: a duplicate beats a loss."""
    assert not own.supersede(key, failures, time, ANOTHER), why


def test_whose_letter_it_is_must_be_known(own: OwnLetters) -> None:
    """Java's says nothing."""
    assert not own.supersede("a", 2, 0.0, None)


def test_the_older_of_its_own_letters_is_superfluous(own: OwnLetters) -> None:
    """By their order, whatever the clocks and the counts say; the last one never is."""
    older, newer = own.stamp(), own.stamp()
    own.published("a", newer, at=50.0)
    own.published("a", older, at=150.0)
    assert own.supersede("a", 3, 150.0, older)
    assert not own.supersede("a", 1, 50.0, newer)


def test_attempts_go_on_from_what_is_known(own: OwnLetters, clock: Clock) -> None:
    """Of a message that comes twice after a kill; not of one that comes much later on purpose."""
    assert (2, 0) == (own.failures("a"), own.failures("b"))
    own.failed("a", 1, 5.0)
    assert 2 == own.failures("a")
    clock.now += 34.9
    assert 2 == own.failures("a")
    clock.now += 0.1
    assert 0 == own.failures("a")
    own.failed("a", 1)
    assert 1 == own.failures("a")


def test_what_could_not_be_published_is_no_attempt_more(own: OwnLetters) -> None:
    """The message comes back with its own count, and has its retries."""
    own.failed("a", 3)
    own.forget("a")
    assert 0 == own.failures("a")
    own.forget("b")
    assert 0 == own.failures("b")


def test_a_dead_message_is_known_for_a_while(own: OwnLetters, clock: Clock) -> None:
    """Whatever is still under way of it need not be handled, until somebody may want it again."""
    left = publish(own, "a", 3, at=110.0)
    assert not own.is_dead("a")
    publish(own, "a", 4, at=120.0, dead=True)
    assert own.is_dead("a")
    assert own.supersede("a", 3, 110.0, left)
    assert own.supersede("a", 4, 119.9, ANOTHER)
    clock.now += 30.0
    assert not own.is_dead("a")
    assert not own.supersede("a", 3, 110.0, left)
    publish(own, "a", 1, at=200.0)
    assert not own.is_dead("a")
    assert own.supersede("a", 3, 110.0, left)


def test_memory_is_bounded(clock: Clock) -> None:
    """The oldest are forgotten: then both letters are handled."""
    own = OwnLetters(most=2, clock=clock)
    assert own.is_empty
    for key in ("a", "b", "a", "c"):
        publish(own, key, 1, at=100.0)
    assert not own.is_empty
    assert [True, False, True] == [own.supersede(key, 1, 0.0, ANOTHER) for key in "abc"]


@pytest.mark.parametrize(
    "text", [None, "", "a", "a.", ".1", "a.x", "a.-1", "a.\u0661", "a." + "9" * 20]
)
def test_garbage_is_no_stamp(text: str | None) -> None:
    """Such a letter is handled."""
    assert Stamp.read(text) is None


def test_a_stamp_is_read_as_it_is_written(own: OwnLetters) -> None:
    """And no two are the same."""
    first, second = own.stamp(), own.stamp()
    assert (first, second) == (Stamp.read(str(first)), Stamp.read(str(second)))
    assert first != second

"""What a process remembers of its letters, without a broker."""

from __future__ import annotations

import threading
import time

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.pull.engine.failure_letters import FailureLetters
from pulsar_retry.pull.engine.hand import Hand, Held
from pulsar_retry.pull.engine.own_letters import OwnLetters
from pulsar_retry.pull.engine.settler import Settler
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


def publish(
    own: OwnLetters,
    key: str,
    failures: int,
    *,
    made_from: int = 0,
    delay: float = 0.0,
    dead: bool = False,
) -> int:
    """Have an attempt fail and its letter published; return the stamp."""
    own.failed(key, failures, delay)
    stamp = own.stamp(key, {"FAILURE_STAMP": str(made_from)})
    own.published(key, stamp, dead=dead)
    return stamp


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
    older = own.stamp("a", {})
    own.published("a", older)
    newer = own.stamp("a", {})
    own.published("a", newer)
    own.published("a", older)
    assert own.supersede("a", 2, older)
    assert not own.supersede("a", 1, newer)


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
    own.forget("a", 3)
    assert 0 == own.failures("a")
    own.forget("b", 1)
    assert 0 == own.failures("b")


def test_a_copy_whose_letter_was_published_is_not_forgotten(own: OwnLetters) -> None:
    """Only the letter of the other copy, which failed before, was not published."""
    own.failed("a", 3)
    publish(own, "a", 4)
    own.forget("a", 3)
    assert 4 == own.failures("a")


def test_stamps_of_letters_that_are_not_out_yet(own: OwnLetters, clock: Clock) -> None:
    """Two copies fail at one moment, or the clock is set back between: the order stays."""
    first = own.stamp("a", {})
    clock.is_off_by = -3600.0
    second = own.stamp("a", {})
    own.published("a", second)
    own.published("a", first)
    assert own.supersede("a", 2, first)
    assert not own.supersede("a", 2, second)


def test_a_dead_message_is_known_for_a_while(own: OwnLetters, clock: Clock) -> None:
    """Whatever is still under way of it need not be handled, until somebody may want it again."""
    left = publish(own, "a", 3)
    assert not own.is_dead("a")
    dead = publish(own, "a", 4, dead=True)
    assert own.is_dead("a")
    assert own.supersede("a", 3, left)
    assert own.supersede("a", 4, dead - 1)
    clock.now += 30.0
    assert not own.is_dead("a")
    assert own.supersede("a", 3, left), "a letter with a delay of 5 s may still be out"
    clock.now += 5.0
    assert not own.supersede("a", 3, left)
    publish(own, "a", 3)
    assert not own.is_dead("a")
    assert own.supersede("a", 3, left)


def test_memory_is_bounded(clock: Clock) -> None:
    """The oldest are forgotten: then both letters are handled."""
    own = of_clock(clock, most=2)
    assert not own.changes
    for key in ("a", "b", "a", "c"):
        publish(own, key, 1)
    assert own.changes
    assert [True, False, True] == [own.supersede(key, 1, at(0.0)) for key in "abc"]


def test_copies_that_fail_at_the_same_moment() -> None:
    """The second one counts the first, although two threads judge them."""
    memory = MemoryBroker()
    consumer = memory.client().subscribe(
        "orders", "billing", pulsar.ConsumerType.Shared, enable_retry=True
    )
    memory.send("orders", b"order")
    message = consumer.receive(1000)
    settler = Settler(
        Hand(),
        consumer,
        pr.RetryPolicy(),
        FailureLetters(consumer.handle.plan),
        redelivery="letters",
        lanes=None,
        breaker=None,
        late="refuse",
    )
    is_judged, other_begins = threading.Event(), threading.Event()

    class Slow:
        """Takes its time for the first failure, so that the other one is judged meanwhile."""

        def delay(self, attempt: int) -> float:
            if not is_judged.is_set():
                is_judged.set()
                other_begins.wait(120)
                time.sleep(0.2)
            return 5.0 + attempt

    def fail() -> None:
        if is_judged.is_set():
            other_begins.set()
        future = settler.act_on_failure(Held(message, 5, None), TimeoutError(), policy)
        assert future is not None
        future.result(120)

    policy = pr.RetryPolicy(backoff=Slow())
    first = threading.Thread(target=fail)
    first.start()
    assert is_judged.wait(120)
    fail()
    first.join()

    letters = memory.messages("orders-billing-RETRY")
    assert ["1", "2"] == sorted(each.properties()["RECONSUMETIMES"] for each in letters)
    memory.close()

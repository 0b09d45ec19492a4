"""Letters that could not be published wait to be published again, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

from pulsar_retry.consumer.handoff.handoff import HandOff
from pulsar_retry.consumer.handoff.sending import Flight, LetterFuture
from pulsar_retry.errors import ConsumerClosedError, LetterPublishError
from pulsar_retry.runtime.clock import Clock

MIB = 1 << 20
ERROR = LetterPublishError("orders-billing-DLQ", RuntimeError("refused"))


class World(Clock):
    """A clock, a timer and a worker that do what they were told when the test says so."""

    def __init__(self) -> None:
        self.time_, self.tasks, self.is_closed = 0.0, [], False  # type: ignore[var-annotated]

    def monotonic(self) -> float:
        """Return the time."""
        return self.time_

    def check_later(self, _owner: Any, _delay: float) -> None:
        """Stand for the timer."""

    def submit(self, task: Callable[[], Any]) -> bool:
        """Stand for the worker."""
        if not self.is_closed:
            self.tasks.append(task)
        return not self.is_closed


class Kept(HandOff):
    """A hand-off that only notes which letters it publishes again."""

    def __init__(self, world: World, most: int = 1000) -> None:
        super().__init__(
            SimpleNamespace(),  # type: ignore[arg-type]
            pulsar.schema.BytesSchema(),
            max_pending=most,
            send_timeout=30.0,
            dead_letter_subscription=None,
            come_back=lambda *_: None,
            handed_on=lambda _: None,
            timer=world,  # type: ignore[arg-type]
            clock=world,
        )
        self._worker = world  # type: ignore[assignment]
        self.world, self.published = world, list[Flight]()

    def _start(self, flight: Flight) -> None:
        self.permits.release(1, flight.size)
        if self.closed:
            raise ConsumerClosedError("closed")
        self.published.append(flight)

    def flight(self, size: int = 1) -> Flight:
        """Return a flight whose letter is refused."""
        letter: Any = None
        return Flight(self, None, None, letter, size, LetterFuture())

    def keep(self, flight: Flight, error: LetterPublishError = ERROR) -> bool:
        """Keep a letter; tell whether there is room."""
        return self._keep(flight, error)

    def due(self) -> None:
        """Let what waits be due."""
        self.world.time_ += 60
        self.check()

    def work(self) -> None:
        """Let the worker do what it was told."""
        while self.world.tasks:
            self.world.tasks.pop(0)()


@pytest.fixture
def world() -> World:
    """Give the timer and the worker."""
    return World()


@pytest.fixture
def kept(world: World) -> Kept:
    """Give a hand-off with room for 1000 letters."""
    return Kept(world)


def test_letters_kept_are_bounded_by_bytes(kept: Kept) -> None:
    """64 MiB of payload, as in flight, however many letters there may be."""
    assert [True] * 13 + [False] * 7 == [kept.keep(kept.flight(5 * MIB)) for _ in range(20)]


def test_each_letter_kept_costs_the_same(world: World) -> None:
    """Ten thousand that fail at once are no ten thousand looks at ten thousand letters."""

    class Unread(dict[Flight, bool]):
        def __iter__(self) -> Any:
            raise AssertionError("looked at all")

    kept = Kept(world)
    kept.waiting = Unread()
    kept.flights = Unread()
    assert [True] * 3 == [kept.keep(kept.flight()) for _ in range(3)]


@pytest.mark.parametrize("closed", [False, True])
def test_room_is_given_back(world: World, closed: bool) -> None:
    """A letter that is published again, or given up, makes room; one that is due does not yet."""
    kept = Kept(world, most=2)
    kept.closed = closed
    first, second = kept.flight(), kept.flight(64 * MIB)
    assert kept.keep(first)
    assert kept.keep(second)
    assert not kept.keep(kept.flight())
    kept.due()
    assert 2 == len(world.tasks)
    assert not kept.keep(kept.flight())
    kept.work()
    assert [closed] * 2 == [each.future.done() for each in (first, second)]
    assert (0 if closed else 2) == len(kept.published)
    assert kept.keep(kept.flight())


def test_a_letter_that_fails_again_keeps_its_room(world: World) -> None:
    """Else the second failure of one letter could push it out."""
    kept = Kept(world, most=1)
    assert kept.keep(kept.flight())
    for stuck in (0, 1):
        kept.due()
        kept.work()
        assert kept.keep(kept.published.pop())
        assert not kept.keep(kept.flight())
        assert stuck == kept.stuck


def test_a_letter_without_a_timer_is_not_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread could be started: its message is redelivered, so nothing may publish it, too."""
    kept = Kept(world, most=1)
    with monkeypatch.context() as patch:
        patch.setattr(world, "check_later", _no_thread)
        assert not kept.keep(kept.flight())
    assert 0 == kept.in_flight
    kept.due()
    assert [] == world.tasks
    assert kept.keep(kept.flight())


def test_letters_that_are_due_while_no_thread_can_be_started(
    kept: Kept, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on to wait: each is published later, once."""
    for _ in range(2):
        kept.keep(kept.flight())
    asked: list[float] = []
    with monkeypatch.context() as patch:
        patch.setattr(world, "submit", _no_thread)
        patch.setattr(world, "check_later", lambda _owner, delay: asked.append(delay))
        kept.due()
    assert 2 == kept.in_flight
    assert asked
    assert asked[-1] > 0
    kept.due()
    kept.work()
    assert (2, 0) == (len(kept.published), kept.in_flight)


def _no_thread(*_: Any) -> None:
    raise RuntimeError("can't start new thread")


def test_what_waits_is_ended_when_the_consumer_closes(kept: Kept, world: World) -> None:
    """Also what is due, and no longer taken by the worker; nothing is kept after that."""
    waiting, is_due, late = (kept.flight() for _ in range(3))
    assert kept.keep(is_due)
    world.is_closed = True
    kept.due()
    assert kept.keep(waiting)
    kept.stop_waiting()
    assert not kept.keep(late)
    assert [True, True, False] == [each.future.done() for each in (waiting, is_due, late)]
    assert isinstance(is_due.future.exception(0), ConsumerClosedError)
    assert 0 == kept.in_flight


def test_a_letter_that_was_given_up_is_not_published(kept: Kept) -> None:
    """Although the worker had it already; its room in flight is given back."""
    kept.keep(kept.flight())
    kept.due()
    kept.stop_waiting()
    kept.work()
    assert ([], 0) == (kept.published, kept.drain(0.0))


@pytest.mark.parametrize(
    ("cause", "level"), [(pulsar.Timeout, "WARNING"), (pulsar.TopicTerminated, "ERROR")]
)
def test_what_nobody_mends_is_an_error(
    kept: Kept, caplog: pytest.LogCaptureFixture, cause: type[Exception], level: str
) -> None:
    """A terminated topic stays terminated, and the message waits until somebody acts."""
    error = LetterPublishError("orders-billing-DLQ", cause())
    error.__cause__ = cause()
    assert kept.keep(kept.flight(), error)
    assert [level] == [record.levelname for record in caplog.records]

"""Letters that could not be published wait to be published again, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from pulsar_retry.consumer.handoff.kept import KeptLetters
from pulsar_retry.errors import ConsumerClosedError, LetterPublishError

MIB = 1 << 20
ERROR = LetterPublishError("orders-billing-DLQ", RuntimeError("refused"))


class Letter:
    """A flight whose letter was refused, and the hand_off that publishes it again."""

    def __init__(self, size: int = 1, *, closed: bool = False) -> None:
        self.size, self.failures, self.hand_off = size, 0, self
        self.closed, self.again_count, self.ended = closed, 0, 0

    def again(self, _flight: Letter) -> None:
        """Take the letter as `HandOff.again` does."""
        if self.closed:
            raise ConsumerClosedError("closed")
        self.again_count += 1

    def report(self, _flight: Letter, _error: Exception) -> None:
        """Tell the caller."""
        self.ended += 1


class World:
    """A timer and a worker that do what they were told when the test says so."""

    def __init__(self) -> None:
        self.time, self.tasks, self.is_closed = 0.0, [], False  # type: ignore[var-annotated]

    def now(self) -> float:
        """Return the time."""
        return self.time

    def check_later(self, _owner: Any, _delay: float) -> None:
        """Stand for the timer."""

    def discard(self, _owner: Any) -> None:
        """Stand for the timer."""

    def submit(self, task: Callable[[], Any]) -> bool:
        """Stand for the worker."""
        if not self.is_closed:
            self.tasks.append(task)
        return not self.is_closed


@pytest.fixture
def world() -> World:
    """Give the timer and the worker."""
    return World()


def kept_in(world: World, most: int = 1000) -> KeptLetters:
    """Return room for *most* letters."""
    return KeptLetters(world, world, most)  # type: ignore[arg-type]


def due(world: World, kept: KeptLetters) -> None:
    """Let what waits be due."""
    world.time += 60
    kept.check()


def test_letters_kept_are_bounded_by_bytes(world: World) -> None:
    """64 MiB of payload, as in flight, however many letters there may be."""
    kept = kept_in(world)
    letters = [Letter(5 * MIB) for _ in range(20)]
    taken = [kept.keep(letter, ERROR) for letter in letters]  # type: ignore[arg-type]
    assert [True] * 13 + [False] * 7 == taken


@pytest.mark.parametrize("closed", [False, True])
def test_room_is_given_back(world: World, closed: bool) -> None:
    """A letter that is published again, or given up, makes room; one that is due does not yet."""
    kept = kept_in(world, most=2)
    first, second, third = Letter(closed=closed), Letter(64 * MIB, closed=closed), Letter()
    assert kept.keep(first, ERROR)  # type: ignore[arg-type]
    assert kept.keep(second, ERROR)  # type: ignore[arg-type]
    assert not kept.keep(third, ERROR)  # type: ignore[arg-type]
    due(world, kept)
    assert 2 == len(world.tasks)
    assert not kept.keep(third, ERROR)  # type: ignore[arg-type]
    for task in world.tasks:
        task()
    outcome = (0, 1) if closed else (1, 0)
    assert [outcome] * 2 == [(letter.again_count, letter.ended) for letter in (first, second)]
    assert kept.keep(third, ERROR)  # type: ignore[arg-type]


def test_a_letter_that_fails_again_keeps_its_room(world: World) -> None:
    """Else the second failure of one letter could push it out."""
    kept = kept_in(world, most=1)
    letter = Letter()
    letter.again = lambda flight: kept.keep(flight, ERROR)  # type: ignore[assignment,arg-type]
    assert kept.keep(letter, ERROR)  # type: ignore[arg-type]
    due(world, kept)
    world.tasks.pop()()
    assert not kept.keep(Letter(), ERROR)  # type: ignore[arg-type]
    assert (2, 0) == (letter.failures, letter.ended)
    assert 0 == kept.stuck
    due(world, kept)
    world.tasks.pop()()
    assert 1 == kept.stuck


def test_a_letter_without_a_timer_is_not_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread could be started: its message is redelivered, so nothing may publish it, too."""
    kept = kept_in(world, most=1)
    letter = Letter()
    with monkeypatch.context() as patch:
        patch.setattr(world, "check_later", _no_thread)
        with pytest.raises(RuntimeError):
            kept.keep(letter, ERROR)  # type: ignore[arg-type]
    assert 0 == len(kept)
    due(world, kept)
    assert [] == world.tasks
    assert kept.keep(Letter(), ERROR)  # type: ignore[arg-type]


def test_letters_that_are_due_while_no_thread_can_be_started(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on to wait: each is published later, once."""
    kept = kept_in(world)
    letters = [Letter(), Letter()]
    for letter in letters:
        kept.keep(letter, ERROR)  # type: ignore[arg-type]
    asked: list[float] = []
    with monkeypatch.context() as patch:
        patch.setattr(world, "submit", _no_thread)
        patch.setattr(world, "check_later", lambda _owner, delay: asked.append(delay))
        due(world, kept)
    assert 2 == len(kept)
    assert asked
    assert asked[-1] > 0
    due(world, kept)
    for task in world.tasks:
        task()
    assert [(1, 0)] * 2 == [(letter.again_count, letter.ended) for letter in letters]
    assert 0 == len(kept)


def _no_thread(*_: Any) -> None:
    raise RuntimeError("can't start new thread")


def test_what_waits_is_ended_when_the_consumer_closes(world: World) -> None:
    """Also what is due, and no longer taken by the worker."""
    kept = kept_in(world)
    waiting, is_due = Letter(), Letter()
    assert kept.keep(is_due, ERROR)  # type: ignore[arg-type]
    world.is_closed = True
    due(world, kept)
    assert kept.keep(waiting, ERROR)  # type: ignore[arg-type]
    kept.close()
    assert (1, 1) == (waiting.ended, is_due.ended)
    assert not kept.keep(Letter(), ERROR)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cause", "level"), [(pulsar.Timeout, "WARNING"), (pulsar.TopicTerminated, "ERROR")]
)
def test_what_nobody_mends_is_an_error(
    world: World, caplog: pytest.LogCaptureFixture, cause: type[Exception], level: str
) -> None:
    """A terminated topic stays terminated, and the message waits until somebody acts."""
    error = LetterPublishError("orders-billing-DLQ", cause())
    error.__cause__ = cause()
    assert kept_in(world).keep(Letter(), error)  # type: ignore[arg-type]
    assert [level] == [record.levelname for record in caplog.records]

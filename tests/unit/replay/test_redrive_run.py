"""A run of a redrive when hand-offs fail: what no broker shows on demand."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import _pulsar
import attrs
import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.admin import Position
from pulsar_retry.consumer.handoff.flight import Flight
from pulsar_retry.letters.letter import Letter
from pulsar_retry.replay.redriving import run as redrive_run
from pulsar_retry.replay.redriving.run import RedriveWork, Run
from pulsar_retry.replay.redriving.source import Checkpoint

DLQ = "persistent://public/default/dlq"


@attrs.frozen
class Id:
    """A message id."""

    entry: int

    def ledger_id(self) -> int:
        return 1

    def entry_id(self) -> int:
        return self.entry

    def partition(self) -> int:
        return -1

    def batch_index(self) -> int:
        return -1


@attrs.frozen
class Raw:
    """A letter."""

    entry: int

    def topic_name(self) -> str:
        return DLQ

    def message_id(self) -> Id:
        return Id(self.entry)

    def length(self) -> int:
        return 1


@attrs.define
class Consumer:
    """Delivers what it is given, and remembers what is acknowledged."""

    letters: list[Raw]
    acknowledged: list[Raw] = attrs.field(factory=list)
    results: list[_pulsar.Result] = attrs.field(factory=list)

    def receive(self, _wait: int) -> Raw:
        if not self.letters:
            raise _pulsar.Timeout
        return self.letters.pop(0)

    def acknowledge_async(self, raw: Raw, callback: Any) -> None:
        result = self.results.pop(0) if self.results else _pulsar.Result.Ok
        if result == _pulsar.Result.Ok:
            self.acknowledged.append(raw)
        callback(result)


def published(letter: str, cause: Exception) -> pr.LetterPublishError:
    """Return the error of a letter that was not published."""
    error = pr.LetterPublishError(letter, cause)
    error.__cause__ = cause
    return error


@attrs.define
class HandOffDouble:
    """Ends hand-offs as it is told: None is a success, and so is everything that is not said."""

    ends: list[Exception | None] = attrs.field(factory=list)
    handed: list[int] = attrs.field(factory=list)
    flights: dict[Any, bool] = attrs.field(factory=dict)

    def hand_on(self, flight: Flight) -> None:
        assert not flight.was_letter
        self.handed.append(flight.raw.entry)
        error = self.ends.pop(0) if self.ends else None
        if error is None:
            flight.source.acknowledge_async(flight.raw, lambda _: None)
            flight.future.succeed()
        else:
            flight.future.set_exception(error)


class Everything:
    """A judge that has every letter redriven."""

    def judge(self, _raw: Raw, _position: str) -> Letter:
        return Letter("retry", {})


@pytest.fixture
def carry_out(monkeypatch) -> Callable[..., tuple[Run, HandOffDouble, Consumer]]:
    """Return a function that redrives letters by their entries, without any pause."""
    monkeypatch.setattr(redrive_run, "_PAUSE", 0.0)
    monkeypatch.setattr(redrive_run, "_LULL", 0.0)
    monkeypatch.setattr(redrive_run, "_TICK", 0.0)

    def carry_out(
        entries: list[int], *ends: Exception | None, **changes: Any
    ) -> tuple[Run, HandOffDouble, Consumer]:
        consumer, hand_off = Consumer([Raw(each) for each in entries]), HandOffDouble(list(ends))
        work = {
            "consumer": consumer,
            "hand_off": hand_off,
            "judge": Everything(),
            "checkpoint": Checkpoint("command", "job", {DLQ: Position(1, 9)}),
            "rate": float("inf"),
            "limit": float("inf"),
            "is_over": lambda _topic, _last: True,
            "save": lambda _checkpoint: None,
            "progress": lambda _run: None,
            **changes,
        }
        run = Run(RedriveWork(**work), threading.Event())
        run.run()
        return run, hand_off, consumer

    return carry_out


def test_what_was_not_published_is_tried_again(carry_out) -> None:
    """Until it is; it counts once."""
    lost = published("retry", pulsar.Timeout())

    run, hand_off, _ = carry_out([0, 1], lost, None, lost)

    assert (2, {}, None) == (run.redriven, dict(run.left), run.stopped)
    assert [0, 1] == sorted(set(hand_off.handed))
    assert 4 == len(hand_off.handed)


def test_what_is_kept_while_it_runs_is_no_exact_count(carry_out) -> None:
    """A kill leaves the last one; the end of a run that goes on later leaves an exact one."""
    saved: list[Checkpoint] = []
    run, _, _ = carry_out([0, 1, 2], save=saved.append)
    assert saved
    assert not any(each.exact for each in saved)
    assert run.remains() is None

    refused = published("retry", pulsar.AuthorizationError())
    run, _, _ = carry_out([0, 1], None, refused)
    run.stopped = redrive_run.CANCELLED
    remains = run.remains()
    assert remains is not None
    assert (1, True) == (remains.redriven, remains.exact)
    assert remains == Checkpoint.decode(remains.encode())
    killed = attrs.evolve(remains, exact=False)
    run, _, _ = carry_out([0], checkpoint=killed)
    run.stopped = redrive_run.CANCELLED
    assert killed.redriven + 1 == run.remains().redriven
    assert not run.remains().exact


def test_what_was_published_is_never_published_again(carry_out) -> None:
    """If its acknowledgement fails, that alone is tried again."""
    run, hand_off, consumer = carry_out([0], pr.AcknowledgeError("the letter is out"))

    assert (1, [0], [Raw(0)]) == (run.redriven, hand_off.handed, consumer.acknowledged)


def test_what_a_topic_refuses_for_good_stays(carry_out) -> None:
    """The others go on."""
    refused = published("retry", pulsar.IncompatibleSchema("another schema"))

    run, _, _ = carry_out([0, 1], refused)

    assert (1, {"refused": 1}, None) == (run.redriven, dict(run.left), run.stopped)
    assert "another schema" in next(iter(run.problems))


def test_what_cannot_be_published_at_all_ends_it(carry_out, monkeypatch) -> None:
    """After some patience; nothing is said to be done that is not."""
    monkeypatch.setattr(redrive_run, "_PATIENCE", 0.05)
    lost = published("retry", pulsar.Timeout())

    run, _, _ = carry_out([0, 1], *[lost] * 100_000)

    assert (0, "refused") == (run.redriven, run.stopped)
    assert run.left["refused"]


def test_a_letter_that_comes_again_is_not_published_again(carry_out) -> None:
    """After a restart of the broker, whose memory of acknowledgements may be older than ours."""
    run, hand_off, consumer = carry_out([0, 1, 0, 1, 2])

    assert (3, [0, 1, 2]) == (run.redriven, hand_off.handed)
    assert {Raw(0): 2, Raw(1): 2, Raw(2): 1} == Counter(consumer.acknowledged)


def test_later_letters_are_no_part_of_it(carry_out) -> None:
    """The job ends where it was when it began."""
    run, hand_off, _ = carry_out([8, 9, 10, 11])

    assert (2, [8, 9]) == (run.redriven, hand_off.handed)


def test_a_rest_api_that_is_away_stops_nothing(carry_out) -> None:
    """The checkpoint is kept when it is back."""
    calls = []

    def save(checkpoint: Checkpoint) -> None:
        calls.append(checkpoint.redriven)
        if len(calls) < 3:
            raise pr.AdminError(503, "x", "away")

    run, _, _ = carry_out([0, 1, 2, 3, 4], save=save)

    assert 5 == run.redriven
    assert 5 == calls[-1]


def test_a_checkpoint_counts_what_was_done_before(carry_out) -> None:
    """And so does a limit."""
    checkpoint = Checkpoint("command", "job", {DLQ: Position(1, 9)}, redriven=7)

    run, _, _ = carry_out([0, 1, 2, 3], checkpoint=checkpoint, limit=9)

    assert (9, "limit") == (run.redriven, run.stopped)


def test_a_topic_that_cannot_be_read_is_an_error(carry_out, monkeypatch) -> None:
    """What was redriven until then is."""

    def receive(_self: Consumer, _wait: int) -> Raw:
        raise _pulsar.AlreadyClosed

    monkeypatch.setattr(Consumer, "receive", receive)
    with pytest.raises(pr.RedriveError, match="cannot be read"):
        carry_out([0])


class Nothing:
    """A judge that has every letter discarded."""

    def judge(self, _raw: Raw, _position: str) -> None:
        return None


def test_what_is_discarded_is_only_acknowledged(carry_out) -> None:
    """It is counted, as far as the limit."""
    run, hand_off, consumer = carry_out([0, 1, 2], judge=Nothing(), limit=2)

    assert (2, {}, "limit") == (run.redriven, dict(run.targets), run.stopped)
    assert ([], [Raw(0), Raw(1)]) == (hand_off.handed, consumer.acknowledged)


def test_a_discarded_letter_is_acknowledged_again(carry_out) -> None:
    """If the broker was away; it counts once."""
    results = [_pulsar.Result.NotConnected, _pulsar.Result.Ok, _pulsar.Result.Timeout]
    consumer = Consumer([Raw(0), Raw(1)], results=results)

    run, _, _ = carry_out([], judge=Nothing(), consumer=consumer)

    assert (2, {}, None) == (run.redriven, dict(run.left), run.stopped)
    assert [Raw(0), Raw(1)] == consumer.acknowledged

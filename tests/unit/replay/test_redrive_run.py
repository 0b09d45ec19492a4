"""A run of a redrive when hand-offs fail: what no broker shows on demand."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import _pulsar
import attrs
import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.admin.position import Position
from pulsar_retry.consumer.handoff.sending import Flight
from pulsar_retry.letters.letter import Letter
from pulsar_retry.replay.ack_state import EntryPlace
from pulsar_retry.replay.reading import LetterInPlace
from pulsar_retry.replay.redriving import run as redrive_run
from pulsar_retry.replay.redriving.judge import Move
from pulsar_retry.replay.redriving.report import Tally
from pulsar_retry.replay.redriving.run import Run
from pulsar_retry.replay.redriving.states import DONE, LetterStates, Unsettled

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
    is_closed: bool = False

    def receive(self, _wait: int) -> Raw:
        if self.is_closed:
            raise _pulsar.AlreadyClosed
        if not self.letters:
            raise _pulsar.Timeout
        return self.letters.pop(0)

    def acknowledge_async(self, raw: Raw, callback: Any) -> None:
        result = self.results.pop(0) if self.results else _pulsar.Result.Ok
        if result == _pulsar.Result.Ok:
            self.acknowledged.append(raw)
        callback(result)

    def is_connected(self) -> bool:
        return not self.is_closed


@attrs.define
class Source:
    """Reports that everything is acknowledged, but not the letters in *forgotten*, until they are.

    The letters in *forgotten* are acknowledged again by themselves.
    """

    consumer: Consumer
    ends: dict[str, EntryPlace] = attrs.field(factory=lambda: {DLQ: EntryPlace(1, 9)})
    forgotten: list[Raw] = attrs.field(factory=list)

    def unsettled(self, _topic: str, states: LetterStates) -> Unsettled:
        done = sum(states[Position(1, each.entry)] == DONE for each in self.forgotten)
        return Unsettled(done, 0, all_sent=True)

    def acknowledge_again(self, consumer: Consumer, _states: LetterStates) -> None:
        for each in self.forgotten:
            consumer.acknowledge_async(each, lambda _: None)
        self.forgotten = []


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
    patience: float = 1.0

    def hand_on(self, flight: Flight) -> None:
        self.handed.append(flight.raw.entry)
        error = self.ends.pop(0) if self.ends else None
        if error is None:
            flight.source.acknowledge_async(flight.raw, lambda _: None)
            flight.future.succeed()
        else:
            flight.future.set_exception(error)


class Everything:
    """A judge that has every letter redriven."""

    def judge(self, _raw: Raw, _position: str) -> Move:
        return Move(Letter("retry", {}))


@pytest.fixture
def carry_out(monkeypatch) -> Callable[..., tuple[Tally, HandOffDouble, Consumer]]:
    """Return a function that redrives letters by their entries, without any pause."""
    for name in ("_PAUSE", "_LULL", "_TICK", "_ASK", "_AGAIN"):
        monkeypatch.setattr(redrive_run, name, 0.0)

    def carry_out(
        entries: list[int],
        *ends: Exception | None,
        consumer: Consumer | None = None,
        judge: Any = None,
        forgotten: tuple[int, ...] = (),
        **changes: Any,
    ) -> tuple[Tally, HandOffDouble, Consumer]:
        consumer = consumer or Consumer([Raw(each) for each in entries])
        hand_off = HandOffDouble(list(ends))
        source = Source(consumer, forgotten=list(map(Raw, forgotten)))
        options = {
            "rate": float("inf"),
            "limit": float("inf"),
            "progress": lambda: None,
            "tally": Tally(),
            "cancelled": threading.Event(),
            **changes,
        }
        run = Run(consumer, hand_off, judge or Everything(), source, **options)
        run.run()
        return run.tally, hand_off, consumer

    return carry_out


def test_what_was_not_published_is_tried_again(carry_out) -> None:
    """Until it is; it counts once."""
    lost = published("retry", pulsar.Timeout())

    tally, hand_off, _ = carry_out([0, 1], lost, None, lost)

    assert (2, {}, None) == (tally.redriven, dict(tally.left), tally.stopped)
    assert [0, 1] == sorted(set(hand_off.handed))
    assert 4 == len(hand_off.handed)


def test_what_was_published_is_never_published_again(carry_out) -> None:
    """If its acknowledgement is lost, that alone is done again; until then it is not the end."""
    lost = pr.AcknowledgeError("the letter is out")

    tally, hand_off, consumer = carry_out([0, 9], lost, forgotten=(0,))

    assert (2, [0, 9], {}) == (tally.redriven, hand_off.handed, dict(tally.left))
    assert {Raw(0): 1, Raw(9): 1} == Counter(consumer.acknowledged)


def test_acknowledgements_that_the_broker_never_reports(carry_out, monkeypatch) -> None:
    """They are counted, and the run says that it is not complete."""
    monkeypatch.setattr(redrive_run, "_PATIENCE", 0.05)
    monkeypatch.setattr(Source, "unsettled", lambda *_: Unsettled(1, 0, all_sent=True))

    tally, _, _ = carry_out([0, 1])

    assert (2, {"unconfirmed": 1}) == (tally.redriven, dict(tally.left))
    assert 2 == tally.report(source=DLQ, job="", dry_run=False).read
    assert "DEDUPE_ID" in next(iter(tally.problems))


def test_a_cancelled_run_whose_limit_is_reached_does_not_go_on(carry_out, monkeypatch) -> None:
    """Letters that their topic does not take are left to the next run."""
    monkeypatch.setattr(redrive_run, "_PATIENCE", 1.0)
    cancelled, lost = threading.Event(), published("retry", pulsar.Timeout())

    def hand_on(_self: HandOffDouble, flight: Flight) -> None:
        threading.Timer(0.05, flight.future.set_exception, [lost]).start()

    tally = Tally()

    def progress() -> None:
        if tally.stopped == "limit" and tally.waits:
            cancelled.set()

    monkeypatch.setattr(HandOffDouble, "hand_on", hand_on)
    tally, _, consumer = carry_out(
        [0, 1], limit=1, cancelled=cancelled, progress=progress, tally=tally
    )

    assert (0, "cancelled", []) == (tally.redriven, tally.stopped, consumer.acknowledged)


def test_a_rest_api_that_stays_away_does_not_keep_a_run_from_its_end(
    carry_out, monkeypatch
) -> None:
    """It cannot tell whether more letters come, or whether what is redriven is acknowledged."""
    monkeypatch.setattr(redrive_run, "_STUCK", 0.05)
    monkeypatch.setattr(redrive_run, "_PATIENCE", 0.05)

    def unsettled(*_: object) -> Unsettled:
        raise pr.AdminError(None, "topics", "nothing answers")

    monkeypatch.setattr(Source, "unsettled", unsettled)
    tally, _, consumer = carry_out([0, 1])

    assert (2, {"unconfirmed": 2}) == (tally.redriven, dict(tally.left))
    assert [Raw(0), Raw(1)] == consumer.acknowledged


def test_a_rate_begins_anew_after_a_pause(carry_out, monkeypatch) -> None:
    """What was missed is not caught up, and letters that failed do not come all at once."""
    now = [0.0]
    monkeypatch.setattr(redrive_run.time, "monotonic", lambda: now[0])

    def wait(_self: threading.Event, seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(threading.Event, "wait", wait)
    sent: list[float] = []
    hand_on = HandOffDouble.hand_on

    def slow(self: HandOffDouble, flight: Flight) -> None:
        sent.append(now[0])
        now[0] += 30 if len(sent) == 3 else 0  # the broker is away
        hand_on(self, flight)

    monkeypatch.setattr(HandOffDouble, "hand_on", slow)
    carry_out([0, 1, 2, 3, 4, 5, 6, 9], rate=2.0)

    assert [pytest.approx(0.5, abs=0.11)] * 4 == [b - a for a, b in itertools.pairwise(sent[3:])]


def test_what_a_topic_refuses_for_good_stays(carry_out) -> None:
    """The others go on."""
    refused = published("retry", pulsar.IncompatibleSchema("another schema"))

    tally, _, _ = carry_out([0, 1], refused)

    assert (1, {"refused": 1}, None) == (
        tally.redriven,
        dict(tally.left),
        tally.stopped,
    )
    assert "another schema" in next(iter(tally.problems))


def test_what_cannot_be_published_at_all_ends_it(carry_out, monkeypatch) -> None:
    """After some patience; nothing is said to be done that is not."""
    monkeypatch.setattr(redrive_run, "_PATIENCE", 0.05)
    lost = published("retry", pulsar.Timeout())

    tally, _, _ = carry_out([0, 1], *[lost] * 100_000)

    assert (0, "refused") == (tally.redriven, tally.stopped)
    assert tally.left["refused"]


def test_a_connection_that_is_lost_again_and_again_ends_it(carry_out, monkeypatch) -> None:
    """One letter can be the reason: pulsar-client closes the connection if it cannot parse it."""
    monkeypatch.setattr(redrive_run, "_PATIENCE", 0.05)
    monkeypatch.setattr(redrive_run, "_WAIT_MS", 1)
    ups = itertools.cycle([True, True, False])
    monkeypatch.setattr(Consumer, "is_connected", lambda _: next(ups))
    monkeypatch.setattr(Source, "unsettled", lambda *_: Unsettled(0, 1, all_sent=False))
    cancelled = threading.Event()
    watchdog = threading.Timer(20, cancelled.set)
    watchdog.start()

    tally, _, _ = carry_out([0, 1], cancelled=cancelled)

    watchdog.cancel()
    assert (2, "refused") == (tally.redriven, tally.stopped)
    assert "away" in next(iter(tally.problems))


@pytest.mark.parametrize("lasts", [False, True])
def test_a_consumer_that_cannot_be_opened_again(carry_out, monkeypatch, lasts) -> None:
    """That is tried again; and if it lasts, the run ends with the reason."""
    monkeypatch.setattr(redrive_run, "_PATIENCE", 0.05)
    monkeypatch.setattr(redrive_run, "_TURN", 0.0)
    monkeypatch.setattr(redrive_run, "_WAIT_MS", 1)
    taken = pr.RedriveError("letters are taken by ada")
    errors = itertools.chain(
        [taken] if not lasts else itertools.repeat(taken), itertools.repeat(None)
    )
    consumer = Consumer([Raw(each) for each in (0, 1, 9)])

    def open_again(_more: int) -> Consumer:
        if (error := next(errors)) is not None:
            consumer.is_closed = True
            raise error
        consumer.is_closed = False
        return consumer

    tally, _, _ = carry_out([], consumer=consumer, open_again=open_again)

    assert (0 if lasts else 3, "refused" if lasts else None) == (tally.redriven, tally.stopped)
    assert lasts == ("ada" in " ".join(tally.problems))


def test_what_is_fetched_ahead_has_a_limit(carry_out, monkeypatch) -> None:
    """However often a broker pauses: pulsar-client takes no queue of more than 2**31 - 1."""
    monkeypatch.setattr(redrive_run, "_PLUGGED", 0.0)
    monkeypatch.setattr(Source, "unsettled", lambda *_: Unsettled(0, 1, all_sent=False))
    consumer, asked = Consumer([]), list[int]()

    def open_again(more: int) -> Consumer:
        asked.append(more)
        consumer.letters += [Raw(len(asked) // 3)] if len(asked) % 3 == 0 else []
        return consumer

    tally, _, _ = carry_out([], consumer=consumer, open_again=open_again)

    assert (9, 1024) == (tally.redriven, max(asked))


def test_a_letter_that_comes_again_is_not_published_again(carry_out) -> None:
    """After a restart of the broker, whose memory of acknowledgements may be older than ours."""
    tally, hand_off, consumer = carry_out([0, 1, 0, 1, 2])

    assert (3, [0, 1, 2]) == (tally.redriven, hand_off.handed)
    assert {Raw(0): 2, Raw(1): 2, Raw(2): 1} == Counter(consumer.acknowledged)


def test_later_letters_are_no_part_of_it(carry_out) -> None:
    """The job ends where it was when it began."""
    tally, hand_off, _ = carry_out([8, 9, 10, 11])

    assert (2, [8, 9]) == (tally.redriven, hand_off.handed)


def test_a_rest_api_that_is_away_stops_nothing(carry_out, monkeypatch) -> None:
    """The run ends when it answers."""
    answers: list[Unsettled | None] = [None, None, Unsettled(0, 0, all_sent=True)]

    def unsettled(*_: object) -> Unsettled:
        answer = answers.pop(0)
        if answer is None:
            raise pr.AdminError(503, "x", "away")
        return answer

    monkeypatch.setattr(Source, "unsettled", unsettled)
    tally, _, _ = carry_out([0, 1, 9])

    assert (3, {}, []) == (tally.redriven, dict(tally.left), answers)


def test_a_topic_that_cannot_be_read_is_an_error(carry_out, monkeypatch) -> None:
    """What was redriven until then is."""

    def receive(_self: Consumer, _wait: int) -> Raw:
        raise _pulsar.AlreadyClosed

    monkeypatch.setattr(Consumer, "receive", receive)
    with pytest.raises(pr.RedriveError, match="cannot be read"):
        carry_out([0])


class Nothing:
    """A judge that has every letter discarded."""

    def judge(self, _raw: Raw, _position: str) -> Move:
        return Move()


def test_reading_that_always_fails_at_one_place_ends(carry_out, monkeypatch) -> None:
    """The letters before that place come each time, and are published once."""
    monkeypatch.setattr(redrive_run, "_PATIENCE", 0.05)
    monkeypatch.setattr(Source, "acknowledge_mixed", lambda *_: None, raising=False)

    def read() -> Iterator[LetterInPlace]:
        for entry in range(2):
            yield LetterInPlace(Raw(entry), DLQ, Position(1, entry))
        raise pulsar.Timeout("Pulsar error: TimeOut")

    tally, hand_off, _ = carry_out([], read=read)

    assert (2, [0, 1], "refused") == (tally.redriven, hand_off.handed, tally.stopped)
    assert {"Pulsar error: TimeOut": None} == tally.problems


def test_what_is_discarded_is_only_acknowledged(carry_out) -> None:
    """It is counted, as far as the limit."""
    tally, hand_off, consumer = carry_out([0, 1, 2], judge=Nothing(), limit=2)

    assert (2, {}, "limit") == (tally.redriven, dict(tally.targets), tally.stopped)
    assert ([], [Raw(0), Raw(1)]) == (hand_off.handed, consumer.acknowledged)


def test_a_discarded_letter_is_acknowledged_again(carry_out) -> None:
    """If the broker was away; it counts once."""
    results = [_pulsar.Result.NotConnected, _pulsar.Result.Ok, _pulsar.Result.Timeout]
    consumer = Consumer([Raw(0), Raw(1)], results=results)

    tally, _, _ = carry_out([], judge=Nothing(), consumer=consumer)

    assert (2, {}, None) == (tally.redriven, dict(tally.left), tally.stopped)
    assert [Raw(0), Raw(1)] == consumer.acknowledged

"""One run of a redrive: reads dead letters, hands them off, and counts.

Every letter is published, its receipt is awaited, and only then it is acknowledged in the
dead-letter topic. So no letter is lost if the process dies. Only letters of the last moment are
published once more, with the same ``DEDUPE_ID``. A letter that is discarded is only acknowledged.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import _pulsar
import attrs
import pulsar

from pulsar_retry.admin.position import Position
from pulsar_retry.consumer.handoff.flight import Flight
from pulsar_retry.consumer.handoff.handoff import HandOff
from pulsar_retry.errors import AcknowledgeError, AdminError, RedriveError
from pulsar_retry.letters.letter import Letter
from pulsar_retry.replay.ack_state import EntryPlace
from pulsar_retry.replay.redriving.judge import LetterJudge
from pulsar_retry.replay.redriving.report import REFUSED
from pulsar_retry.replay.redriving.source import Checkpoint
from pulsar_retry.runtime.future import LetterFuture

#: Seconds between two updates of checkpoint and progress.
_TICK = 0.5
#: Seconds until a letter that was not published is tried again, and until the run gives up.
_PAUSE, _PATIENCE = 0.5, 60.0
#: Milliseconds to wait for a letter, and seconds without one after which the broker is asked.
_WAIT_MS, _LULL = 200, 1.0
#: The bits of a ledger and of an entry in the number of a letter.
_LEDGER, _ENTRY = (1 << 63) - 1, (1 << 40) - 1
#: How many letters may wait for another try.
_MAX_RETURNED = 1000
#: Errors for which another try does not help.
_NO_RETRY_ERRORS = (
    pulsar.AuthorizationError,
    pulsar.IncompatibleSchema,
    pulsar.MessageTooBig,
    pulsar.TopicTerminated,
)

LIMIT, CANCELLED = "limit", "cancelled"


@attrs.frozen
class Returned:
    """A letter that was not published or not acknowledged, and is to be tried again.

    Attributes:
        raw: The dead letter, as a raw message.
        number: The number that identifies it within the job.
        letter: The letter to publish; None if it is only acknowledged.
        error: Why it failed.
        first: When it failed for the first time, by the monotonic clock.
        due: When it may be tried again, by the same clock.
    """

    raw: Any
    number: int
    letter: Letter | None
    error: BaseException
    first: float
    due: float


@attrs.frozen(kw_only=True)
class RedriveWork:
    """The task of a run, and what it needs.

    Attributes:
        consumer: The raw consumer of the dead-letter topic.
        hand_off: Hands the letters off.
        judge: Decides about the letters.
        checkpoint: The state of the job.
        rate: The speed limit, in letters per second.
        limit: How many letters may be redriven, by this run and earlier ones.
        is_over: Tells whether no more letters come from a partition, of which the last one to come
            is given; called if none comes for a while.
        save: Stores a checkpoint.
        progress: Called twice a second with the run.
    """

    consumer: Any
    hand_off: HandOff
    judge: LetterJudge
    checkpoint: Checkpoint
    rate: float
    limit: float
    is_over: Callable[[str, EntryPlace | None], bool]
    save: Callable[[Checkpoint], None]
    progress: Callable[[Run], None]


class _HandOffFuture(LetterFuture):
    """The future of one hand-off. It tells the run directly, which is cheaper than a callback."""

    def __init__(
        self, run: Run, raw: Any, number: int, letter: Letter | None, first: float | None
    ) -> None:
        super().__init__()
        self.run, self.raw, self.number, self.letter, self.first = run, raw, number, letter, first

    def succeed(self) -> None:
        self.run.letter_published(self)

    def set_exception(self, exception: BaseException | None) -> None:
        assert exception is not None  # noqa: S101 - a hand_off's failures have one
        self.run.letter_failed(self, exception)

    def acknowledged(self, result: _pulsar.Result) -> None:
        """Take the result for a letter that is only acknowledged."""
        if result == _pulsar.Result.Ok:
            self.succeed()
        else:
            self.set_exception(RedriveError(f"a letter could not be acknowledged: {result}"))


class Run:
    """Executes a `RedriveWork`, on the thread that calls `run`.

    Attributes:
        redriven: How many letters were redriven, including those of the runs that it continues.
        patched: How many letters were redriven with another payload.
        left: How many letters stay, by reason.
        targets: How many letters went to each topic.
        stopped: Why it ended early.
        problems: Why letters stay, in words.
    """

    def __init__(self, work: RedriveWork, cancelled: threading.Event) -> None:
        self._work = work
        self._cancelled = cancelled
        self._lock = threading.Lock()
        self._failed_letters: SimpleQueue[Returned] = SimpleQueue()
        self._acknowledging = 0  # letters that are only acknowledged, without an answer so far
        self._returned: deque[Returned] = deque()
        self._seen: dict[int, bool] = {}  # by number: whether the letter was published
        self._saved = work.checkpoint.redriven
        self._open_partitions = dict(work.checkpoint.ends)
        self._last: dict[str, EntryPlace] = {}  # by partition: the last letter that has come
        self._sent = 0
        self._next_tick = 0.0
        self.redriven = work.checkpoint.redriven
        self.patched = 0
        self.left: Counter[str] = Counter()
        self.targets: Counter[str] = Counter()
        self.stopped: str | None = None
        self.problems: dict[str, None] = {}

    def run(self) -> None:
        """Redrive all letters of the job; return when all of them are settled."""
        started = time.monotonic()
        room = self._work.limit - self.redriven
        for raw, number, position in self._letters():
            verdict = self._work.judge.judge(raw, position)
            if isinstance(verdict, str):
                self.left[verdict] += 1
                continue
            if self._sent >= room:
                self.stopped = LIMIT
                break
            self._await_turn(started + self._sent / self._work.rate)
            if self.stopped:
                break
            self._sent += 1
            self._send(raw, number, verdict)
        self._drain()
        self._tick()

    def remains(self) -> Checkpoint | None:
        """Return the checkpoint from which the same redrive continues; None if it is done."""
        if self.stopped not in {CANCELLED, REFUSED}:
            return None
        begun = self._work.checkpoint
        exact = begun.exact and not self._in_flight()
        return attrs.evolve(begun, redriven=self.redriven, exact=exact)

    def has_seen(self) -> set[EntryPlace]:
        """Return the places of the letters that were delivered; ledgers have unique numbers."""
        return {EntryPlace(each >> 64 & _LEDGER, each >> 24 & _ENTRY) for each in self._seen}

    # -- reading ----------------------------------------------------------------------------------

    def _letters(self) -> Iterator[tuple[Any, int, str]]:
        """Yield the unacknowledged letters of the job, with their numbers and places."""
        last = time.monotonic()
        while self._open_partitions and not self.stopped:
            self._check()
            if len(self._returned) >= _MAX_RETURNED:
                time.sleep(_TICK / 10)
                continue
            try:
                raw = self._work.consumer.receive(_WAIT_MS)
            except _pulsar.Timeout:
                if time.monotonic() - last > _LULL:
                    self._close_partitions()
                    last = time.monotonic()
                continue
            except _pulsar.PulsarException as error:
                raise RedriveError(f"the dead-letter topic cannot be read: {error}") from error
            last = time.monotonic()
            found = self._number_and_position(raw)
            if found is not None:
                yield raw, *found

    def _number_and_position(self, raw: Any) -> tuple[int, str] | None:
        """Return a letter's number and id; None if it is not part of the job, or is a duplicate."""
        topic, where = raw.topic_name(), raw.message_id()
        ledger, entry, batch = where.ledger_id(), where.entry_id(), where.batch_index()
        self._last[topic] = EntryPlace(ledger, entry)
        end = self._work.checkpoint.ends.get(topic)
        if end is None or (ledger, entry) > (end.ledger, end.entry):
            self._open_partitions.pop(topic, None)  # the letters of a partition come in order
            return None
        if batch < 0 and (ledger, entry) == (end.ledger, end.entry):
            self._open_partitions.pop(topic, None)
        number = ((where.partition() + 1 << 63 | ledger) << 40 | entry) << 24 | batch + 1
        if number in self._seen:  # redelivered, for example after a restart of the broker
            if self._seen[number]:
                self._acknowledge(raw)
            return None
        self._seen[number] = False
        return number, str(Position(ledger, entry, where.partition(), batch))

    def _close_partitions(self) -> None:
        """Read no more from partitions whose letters have all come."""
        with contextlib.suppress(AdminError):
            for topic in list(self._open_partitions):
                if self._work.is_over(topic, self._last.get(topic)):
                    del self._open_partitions[topic]

    # -- handing on -------------------------------------------------------------------------------

    def _send(
        self, raw: Any, number: int, letter: Letter | None, first: float | None = None
    ) -> None:
        """Hand a letter off, or only acknowledge it if *letter* is None.

        *first* is the time of the first try, if there was one.
        """
        future = _HandOffFuture(self, raw, number, letter, first)
        consumer = self._work.consumer
        if letter is not None:
            hand_off = self._work.hand_off
            hand_off.hand_on(
                Flight(hand_off, raw, consumer, letter, raw.length(), future, was_letter=False)
            )
            return
        with self._lock:
            self._acknowledging += 1
        consumer.acknowledge_async(raw, future.acknowledged)

    def letter_published(self, future: _HandOffFuture) -> None:
        """Count a letter that was published. Any thread may call it."""
        with self._lock:
            self.redriven += 1
            if future.letter is None:
                self._acknowledging -= 1
            else:
                self.targets[future.letter.topic] += 1
                self.patched += future.letter.payload is not None
        self._seen[future.number] = True

    def letter_failed(self, future: _HandOffFuture, error: BaseException) -> None:
        """Record a letter whose hand-off failed. Any thread may call it."""
        if isinstance(error, AcknowledgeError):
            self.letter_published(future)
        now = time.monotonic()
        due, first = now + _PAUSE, future.first or now
        returned = Returned(future.raw, future.number, future.letter, error, first, due)
        self._failed_letters.put(returned)
        if future.letter is None:
            with self._lock:
                self._acknowledging -= 1

    def _take_back(self) -> None:
        """Publish again what was not published, and acknowledge again what was published."""
        while not self._failed_letters.empty():  # no other thread takes from it
            each = self._failed_letters.get_nowait()
            if isinstance(each.error, AcknowledgeError):
                self._acknowledge(each.raw)
            elif isinstance(each.error.__cause__, _NO_RETRY_ERRORS):
                self._refuse(each.error)
            else:
                self._returned.append(each)
        now = time.monotonic()
        while self._returned and self._returned[0].due <= now and self._goes_on():
            each = self._returned.popleft()
            if now - each.first > _PATIENCE:
                self._refuse(each.error)
                self.stopped = REFUSED
            else:
                self._send(each.raw, each.number, each.letter, each.first)

    def _acknowledge(self, raw: Any) -> None:
        self._work.consumer.acknowledge_async(raw, lambda _: None)

    def _refuse(self, error: BaseException) -> None:
        self.left[REFUSED] += 1
        self.problems[str(error)] = None

    # -- between letters --------------------------------------------------------------------------

    def _check(self) -> None:
        if self._cancelled.is_set():
            self.stopped = self.stopped or CANCELLED
        if time.monotonic() >= self._next_tick:
            self._tick()

    def _tick(self) -> None:
        self._next_tick = time.monotonic() + _TICK
        self._take_back()
        # Continue if the broker is not reachable: it may only be restarted.
        with contextlib.suppress(AdminError):
            self._save()
        self._work.progress(self)

    def _save(self) -> None:
        redriven = self.redriven
        if redriven != self._saved:
            begun = self._work.checkpoint
            self._work.save(attrs.evolve(begun, redriven=redriven, exact=False))
            self._saved = redriven

    def _await_turn(self, due: float) -> None:
        """Wait until the next letter may be sent, or until the redrive is stopped."""
        while not self.stopped:
            self._check()
            left = due - time.monotonic()
            if left <= 0:
                return
            self._cancelled.wait(min(left, _TICK / 5))

    def _drain(self) -> None:
        """Wait for letters in flight; failed ones are tried again unless the run was stopped."""
        give_up = time.monotonic() + _PATIENCE
        while time.monotonic() < give_up and (
            self._in_flight()
            or not self._failed_letters.empty()
            or (self._returned and self._goes_on())
        ):
            self._take_back()
            self._check()
            time.sleep(0.005)
        if self._goes_on() and (late := self._in_flight() + len(self._returned)):
            self.left[REFUSED] += late
            self.stopped = REFUSED

    def _in_flight(self) -> int:
        """Return how many letters were handed off or acknowledged, without an answer so far."""
        return len(self._work.hand_off.flights) + self._acknowledging

    def _goes_on(self) -> bool:
        """Tell whether letters that were not published are tried again."""
        return self.stopped in {None, LIMIT}

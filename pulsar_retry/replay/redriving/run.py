"""One run of a redrive: reads dead letters, hands them on, and keeps count.

Every letter is published, its receipt awaited, and only then acknowledged in the dead-letter topic.
So a process that dies loses none: at most the letters of its last moment are published once more,
with the same ``DEDUPE_ID``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

import _pulsar
import attrs
import pulsar

from pulsar_retry.admin.position import Position
from pulsar_retry.consumer.handoff.handoff import HandOff
from pulsar_retry.errors import AcknowledgeError, AdminError, RedriveError
from pulsar_retry.letters.letter import Letter
from pulsar_retry.replay.redriving.judge import RedriveJudge
from pulsar_retry.replay.redriving.pace import RedriveRate
from pulsar_retry.replay.redriving.report import REFUSED
from pulsar_retry.replay.redriving.source import Checkpoint
from pulsar_retry.runtime.future import LetterFuture

#: Seconds between two looks at everything but the letters.
_TICK = 0.5
#: Seconds until a letter that was not published is tried again, and until that is given up.
_PAUSE, _PATIENCE = 0.5, 60.0
#: Milliseconds to wait for a letter, and seconds without one after which the broker is asked.
_WAIT_MS, _LULL = 200, 1.0
#: Letters that may be waiting to be tried again.
_MAX_RETURNED = 1000
#: A ratio of fewer letters than these says nothing.
_ENOUGH = 20
#: No second try helps against these.
_FINAL = (
    pulsar.AuthorizationError,
    pulsar.IncompatibleSchema,
    pulsar.MessageTooBig,
    pulsar.TopicTerminated,
)

LIMIT, CANCELLED, RATIO = "limit", "cancelled", "failure_ratio"


@attrs.frozen
class Returned:
    """A letter that was not published or not acknowledged, and is to be tried again."""

    raw: Any
    number: int
    letter: Letter
    error: BaseException
    first: float
    due: float


@attrs.frozen(kw_only=True)
class RedriveWork:
    """What a run has to do, and with what.

    Attributes:
        consumer: The raw consumer of the dead-letter topic.
        hand_off: Hands letters on.
        judge: Decides about them.
        checkpoint: Where the job is.
        pace: How fast it may be.
        limit: How many letters may be redriven, by this run and those before it.
        max_failure_ratio: Which share of them may be dead again.
        passed: Tells of a partition whether the broker has delivered everything of the job.
        failures: Returns how many redriven letters are dead again.
        save: Keeps a checkpoint.
        progress: Is told twice a second how many were redriven.
    """

    consumer: Any
    hand_off: HandOff
    judge: RedriveJudge
    checkpoint: Checkpoint
    pace: RedriveRate
    limit: float
    max_failure_ratio: float | None
    passed: Callable[[str], bool]
    failures: Callable[[], int]
    save: Callable[[Checkpoint], None]
    progress: Callable[[Run], None]


class _Hand(LetterFuture):
    """The end of one hand-off. It tells the run, which is cheaper than a callback; nobody waits."""

    def __init__(
        self, run: Run, raw: Any, number: int, letter: Letter, first: float | None
    ) -> None:
        super().__init__()
        self.run, self.raw, self.number, self.letter, self.first = run, raw, number, letter, first

    def succeed(self) -> None:
        self.run.landed(self)

    def set_exception(self, exception: BaseException | None) -> None:
        assert exception is not None  # noqa: S101 - a hand_off's failures have one
        self.run.failed(self, exception)


class Run:
    """Carries out a `RedriveWork`, on the thread that calls `run`.

    Attributes:
        redriven: How many letters were brought back, by killed predecessors too.
        failed_again: How many of them are dead again.
        left: How many stay, by the reason.
        targets: How many went to each topic.
        stopped: Why it ended early.
        problems: What stood in the way, in words.
    """

    def __init__(self, work: RedriveWork, cancelled: threading.Event) -> None:
        self._work = work
        self._cancelled = cancelled
        self._lock = threading.Lock()
        self._back: SimpleQueue[Returned] = SimpleQueue()
        self._returned: deque[Returned] = deque()
        self._seen: dict[int, bool] = {}  # whether it is out
        self._saved = work.checkpoint.redriven
        self._open = dict(work.checkpoint.ends)
        self._sent = 0
        self._next_tick = 0.0
        self.redriven = work.checkpoint.redriven
        self.failed_again = 0
        self.left: Counter[str] = Counter()
        self.targets: Counter[str] = Counter()
        self.stopped: str | None = None
        self.problems: dict[str, None] = {}

    def run(self) -> None:
        """Redrive what there is; return when all of it is settled."""
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
            self._await_turn(started + self._work.pace.due(self._sent))
            if self.stopped:
                break
            self._sent += 1
            self._send(raw, number, verdict)
        self._drain()
        self._tick()

    def remains(self) -> Checkpoint | None:
        """Return from where the same redrive goes on; None: it is done."""
        if self.stopped not in {CANCELLED, REFUSED}:
            return None
        begun = self._work.checkpoint
        exact = begun.exact and not self._work.hand_off.flights
        return attrs.evolve(begun, redriven=self.redriven, exact=exact)

    # -- reading ----------------------------------------------------------------------------------

    def _letters(self) -> Iterator[tuple[Any, int, str]]:
        """Yield the letters of the job that are not acknowledged, their numbers and places."""
        last = time.monotonic()
        while self._open and not self.stopped:
            self._look_around()
            if len(self._returned) >= _MAX_RETURNED:
                time.sleep(_TICK / 10)
                continue
            try:
                raw = self._work.consumer.receive(_WAIT_MS)
            except _pulsar.Timeout:
                if time.monotonic() - last > _LULL:
                    self._forget_passed()
                continue
            except _pulsar.PulsarException as error:
                raise RedriveError(f"the dead-letter topic cannot be read: {error}") from error
            last = time.monotonic()
            found = self._placed(raw)
            if found is not None:
                yield raw, *found

    def _placed(self, raw: Any) -> tuple[int, str] | None:
        """Return where a letter is; None: it is no part of the job, or comes a second time."""
        topic, where = raw.topic_name(), raw.message_id()
        ledger, entry, batch = where.ledger_id(), where.entry_id(), where.batch_index()
        end = self._work.checkpoint.ends.get(topic)
        if end is None or (ledger, entry) > (end.ledger, end.entry):
            self._open.pop(topic, None)  # the letters of a partition come in order
            return None
        if batch < 0 and (ledger, entry) == (end.ledger, end.entry):
            self._open.pop(topic, None)
        number = ((where.partition() + 1 << 63 | ledger) << 40 | entry) << 24 | batch + 1
        if number in self._seen:  # the broker was restarted
            if self._seen[number]:
                self._acknowledge(raw)
            return None
        self._seen[number] = False
        return number, str(Position(ledger, entry, where.partition(), batch))

    def _forget_passed(self) -> None:
        with contextlib.suppress(AdminError):
            for topic in list(self._open):
                if self._work.passed(topic):
                    del self._open[topic]

    # -- handing on -------------------------------------------------------------------------------

    def _send(self, raw: Any, number: int, letter: Letter, first: float | None = None) -> None:
        """Hand a letter on; *first*: when that was tried first, if it was."""
        hand = _Hand(self, raw, number, letter, first)
        hand_off, consumer = self._work.hand_off, self._work.consumer
        hand_off.hand_on(raw, consumer, letter, was_letter=False, future=hand)

    def landed(self, hand: _Hand) -> None:
        """Count a letter that is out. Any thread."""
        with self._lock:
            self.redriven += 1
            self.targets[hand.letter.topic] += 1
        self._seen[hand.number] = True

    def failed(self, hand: _Hand, error: BaseException) -> None:
        """Take a letter back. Any thread."""
        if isinstance(error, AcknowledgeError):
            self.landed(hand)
        now = time.monotonic()
        due, first = now + _PAUSE, hand.first or now
        self._back.put(Returned(hand.raw, hand.number, hand.letter, error, first, due))

    def _take_back(self) -> None:
        """Try again what was not published, and to acknowledge what was."""
        with contextlib.suppress(Empty):
            while True:
                each = self._back.get_nowait()
                if isinstance(each.error, AcknowledgeError):
                    self._acknowledge(each.raw)
                elif isinstance(each.error.__cause__, _FINAL):
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

    def _look_around(self) -> None:
        if self._cancelled.is_set():
            self.stopped = self.stopped or CANCELLED
        if time.monotonic() >= self._next_tick:
            self._tick()

    def _tick(self) -> None:
        self._next_tick = time.monotonic() + _TICK
        self._take_back()
        # A broker that restarts is no reason to stop: the letters wait for it, too.
        with contextlib.suppress(AdminError):
            self._save()
        with contextlib.suppress(pulsar.PulsarException):
            self._compare()
        self._work.progress(self)

    def _save(self) -> None:
        redriven = self.redriven
        if redriven != self._saved:
            begun = self._work.checkpoint
            self._work.save(attrs.evolve(begun, redriven=redriven, exact=False))
            self._saved = redriven

    def _compare(self) -> None:
        """Stop when too many letters are dead again."""
        ratio = self._work.max_failure_ratio
        if ratio is not None:
            self.failed_again = self._work.failures()
            if self.failed_again > ratio * max(self.redriven, _ENOUGH):
                self.stopped = self.stopped or RATIO

    def _await_turn(self, due: float) -> None:
        """Wait until the next letter may go, or until the redrive is stopped."""
        while not self.stopped:
            self._look_around()
            left = due - time.monotonic()
            if left <= 0:
                return
            self._cancelled.wait(min(left, _TICK / 5))

    def _drain(self) -> None:
        """Wait for what is under way; what fails now is tried again unless the run was stopped."""
        give_up = time.monotonic() + _PATIENCE
        while time.monotonic() < give_up and (
            self._work.hand_off.flights
            or not self._back.empty()
            or (self._returned and self._goes_on())
        ):
            self._take_back()
            self._look_around()
            time.sleep(0.005)
        if self._goes_on() and (late := len(self._work.hand_off.flights) + len(self._returned)):
            self.left[REFUSED] += late
            self.stopped = REFUSED

    def _goes_on(self) -> bool:
        """Tell whether what was not published is still to be."""
        return self.stopped in {None, LIMIT}

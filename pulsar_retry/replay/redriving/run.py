"""One run of a redrive: reads dead letters, hands them off, and counts.

Every letter is published, its receipt is awaited, and only then it is acknowledged in the
dead-letter topic. So no letter is lost if the process dies. Only letters of the last moment are
published once more, with the same ``DEDUPE_ID``. A letter that is discarded is only acknowledged.

The acknowledgements are the progress: the next run takes what is left. pulsar-client gets no
receipts for them, and a broker that dies forgets the last ones. So a run ends when the broker
reports that it has them; until then, those that it does not have are sent again.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any

import _pulsar
import attrs
import pulsar

from pulsar_retry.admin.position import Position
from pulsar_retry.consumer.handoff.handoff import HandOff
from pulsar_retry.consumer.handoff.sending import Flight, LetterFuture
from pulsar_retry.errors import AcknowledgeError, AdminError, RedriveError, shown
from pulsar_retry.replay.ack_state import EntryPlace
from pulsar_retry.replay.publishing import AcknowledgedLater
from pulsar_retry.replay.reading import LetterInPlace, position_of
from pulsar_retry.replay.redriving.judge import LetterJudge, Move
from pulsar_retry.replay.redriving.report import (
    CANCELLED,
    LIMIT,
    REFUSED,
    UNCONFIRMED,
    WHY_UNCONFIRMED,
    Tally,
)
from pulsar_retry.replay.redriving.states import (
    DONE,
    HELD,
    NEW,
    STAYS,
    LetterStates,
    Source,
)

#: Seconds between two updates of progress.
_TICK = 0.5
#: Seconds until a letter that was not published is tried again, or a consumer that was not opened.
_PAUSE = 0.5
#: Seconds for which a run waits for a broker, or for a topic that does not take its letters; and
#: seconds without a hindrance after which that time begins anew, unless a letter has moved.
_PATIENCE, _CALM = 120.0, 10.0
#: Seconds for which a cancelled run waits until the broker has its acknowledgements.
_HURRY = 10.0
#: Milliseconds to wait for a letter, and seconds without one after which the broker is asked.
_WAIT_MS, _LULL = 200, 1.0
#: Seconds without a letter after which no more come: if the broker has sent all, and otherwise.
_ON_ITS_WAY, _STUCK = 10.0, 60.0
#: Seconds in which as many letters are taken as are fetched ahead; otherwise the consumer is opened
#: again. pulsar-client asks for more when half of them is taken, and it acknowledges the first
#: chunks of a letter if the others do not come within a minute.
_TURN = 25.0
#: Seconds without a letter after which twice as many are fetched ahead; they double each time. And
#: how many times as many as at first these are at most.
_PLUGGED, _MOST_MORE = 4.0, 1024
#: Seconds between two questions about acknowledgements, and until they are sent again.
_ASK, _AGAIN = 0.2, 5.0
#: How many letters are in flight at most; with a rate, those of a second.
IN_FLIGHT = 1000
#: For how many seconds a rate may be caught up.
_BEHIND = 0.1
_NOWHERE = EntryPlace(-1, -1)
_LATER = AcknowledgedLater()
#: Errors for which another try does not help.
_NO_RETRY_ERRORS = (
    pulsar.AuthorizationError,
    pulsar.IncompatibleSchema,
    pulsar.MessageTooBig,
    pulsar.TopicTerminated,
)


@attrs.frozen
class _Item:
    """A letter that leaves its topic.

    Attributes:
        raw: The dead letter, as a raw message.
        place: Its place.
        move: Where it goes.
        due: When it may be tried, by the monotonic clock.
    """

    raw: Any
    place: Position
    move: Move
    due: float = 0.0


class _ItemFuture(LetterFuture):
    """The future of one hand-off. It tells the run directly, which is cheaper than a callback."""

    def __init__(self, run: Run, item: _Item) -> None:
        super().__init__()
        self.run, self.item = run, item

    def succeed(self) -> None:
        self.run.item_done(self.item)

    def set_exception(self, exception: BaseException | None) -> None:
        assert exception is not None  # a hand-off's failures have one
        self.run.item_failed(self.item, exception)


class Run:
    """One run, on the thread that calls `run`.

    Attributes:
        states: What is known of the letters.
        tally: The counts so far.
    """

    def __init__(
        self,
        consumer: Any,
        hand_off: HandOff,
        judge: LetterJudge,
        source: Source,
        *,
        tally: Tally,
        rate: float,
        limit: float,
        progress: Callable[[], None],
        cancelled: threading.Event,
        ahead: int = 0,
        open_again: Callable[[int], Any] | None = None,
        read: Callable[[], Iterator[LetterInPlace]] | None = None,
    ) -> None:
        """Prepare.

        Args:
            consumer: A raw consumer of the dead-letter topic's subscription.
            hand_off: Hands the letters off.
            judge: Decides about the letters.
            source: The dead-letter topic.
            tally: Gets the counts.
            rate: Letters per second at most.
            limit: How many letters may be redriven.
            progress: Called twice a second.
            cancelled: Tells that it is cancelled.
            ahead: How many letters *consumer* fetches ahead, of all partitions.
            open_again: Closes *consumer* and returns another one, which fetches as many times that
                many letters ahead as it is told.
            read: Reads the letters, if *consumer* does not get them.
        """
        self._consumer, self._hand_off, self._judge = consumer, hand_off, judge
        self._source, self._rate, self._limit = source, rate, limit
        self._progress, self._cancelled, self._read = progress, cancelled, read
        self._lock = threading.Lock()
        self._waiting: deque[_Item] = deque()
        self._failed: SimpleQueue[tuple[_Item, BaseException]] = SimpleQueue()
        self._in_flight, self._room = 0, math.ceil(min(rate, IN_FLIGHT))
        self._next_turn = self._next_tick = 0.0
        self._hindered_since, self._hindered_at, self._moved = math.inf, -math.inf, (0, 0)
        self._refused_last = ""  # why the last letter was not published; empty after a success
        self._unread = ""  # why no letter could be read; empty after a success
        self._open_partitions = dict(source.ends)
        self._ahead, self._open_again = ahead, open_again if read is None else None
        self._more, self._turn_began, self._turn_left = 1, time.monotonic(), ahead
        self._is_closed = False
        self.states = LetterStates()
        self.tally = tally

    def run(self) -> None:
        """Redrive all letters; return when each of them is settled, as the broker reports it."""
        taken = 0
        for raw, place in self._letters():
            verdict = self._judge.judge(raw, str(place))
            self.states[place] = STAYS
            if isinstance(verdict, str):
                self.tally.left[verdict] += 1
            elif taken >= self._limit:
                self.tally.stopped = LIMIT
                break
            else:
                taken += 1
                self.states[place] = HELD
                self._waiting.append(_Item(raw, place, verdict))
                self._send_waiting()
        self._settle()
        self._tick()

    # -- reading ----------------------------------------------------------------------------------

    def _letters(self) -> Iterator[tuple[Any, Position]]:
        """Yield the letters that were not acknowledged, with their places."""
        if self._read is not None:
            yield from self._read_letters(self._read)
            return
        came = asked = time.monotonic()
        plugged = _PLUGGED
        while self._open_partitions and self.tally.stopped is None:
            self._check()
            raw = self._receive()
            now = time.monotonic()
            if raw is not None:
                found = self._first_seen(raw)
                if found is not None:
                    plugged = _PLUGGED
                    yield raw, found
                came = asked = time.monotonic()
            elif not self._consumer.is_connected():
                came = asked = now
            elif now - asked > _LULL:
                asked = now
                if not self._close_partitions(now - came) and now - came > plugged:
                    plugged *= 2
                    self._more = min(self._more * 2, _MOST_MORE)
                    self._reopen()

    def _read_letters(
        self, read: Callable[[], Iterator[LetterInPlace]]
    ) -> Iterator[tuple[Any, Position]]:
        """Yield the letters that *read* finds; while that fails, read again from the start."""
        letters, failing_since = read(), math.inf
        while True:
            found = None
            try:
                found = next(letters, None)
                self._unread = ""
            except (AdminError, pulsar.PulsarException) as error:
                self._unread = shown(error)
                failing_since = min(failing_since, time.monotonic())
                if time.monotonic() - failing_since > _PATIENCE:  # at the same place, perhaps
                    self._give_up(self._unread)
                letters = read()
                self._cancelled.wait(_PAUSE)
            self._check()
            if self.tally.stopped is not None or (found is None and not self._unread):
                return
            if found is None:
                continue
            raw, topic, place = found
            is_of_run = EntryPlace.of(place) <= self._source.ends.get(topic, _NOWHERE)
            if is_of_run and self.states[place] == NEW:
                failing_since = math.inf
                yield raw, place

    def _receive(self) -> Any:
        """Return a raw letter; None if none comes."""
        if self._is_closed:
            self._cancelled.wait(_PAUSE)
            return None
        self._turn_left -= 1
        if self._turn_left < 0:
            self._begin_turn()
        try:
            return self._consumer.receive(_WAIT_MS)
        except _pulsar.Timeout:
            self._begin_turn()  # everything that was fetched is taken
            return None
        except _pulsar.PulsarException as error:
            raise RedriveError(f"the dead-letter topic cannot be read: {error}") from error

    def _begin_turn(self) -> None:
        self._turn_began, self._turn_left = time.monotonic(), self._ahead * self._more

    def _reopen(self) -> None:
        """Open the consumer again. What comes again is known by its place.

        If that fails, for example because the broker is away, it is tried again.
        """
        if self._open_again is None:
            return
        self._is_closed = True
        try:
            self._consumer = self._open_again(self._more)
            self._is_closed, self._unread = False, ""
        except (AdminError, RedriveError, pulsar.PulsarException) as error:
            self._unread = shown(error)
        self._begin_turn()

    def _first_seen(self, raw: Any) -> Position | None:
        """Return a letter's place; None if it came before, or is no part of the run."""
        topic, place = raw.topic_name(), position_of(raw)
        end = self._source.ends.get(topic)
        entry = EntryPlace.of(place)
        if end is None or entry > end:
            self._open_partitions.pop(topic, None)  # the letters of a partition come in order
            return None
        if place.batch < 0 and entry == end:
            self._open_partitions.pop(topic, None)
        state = self.states[place]
        if state == DONE:  # redelivered, for example after a restart of the broker
            self._consumer.acknowledge_async(raw, lambda _: None)
        return place if state == NEW else None

    def _close_partitions(self, silence: float) -> bool:
        """Read no more from partitions whose letters have all come, or that are silent.

        Returns:
            Whether the broker has sent all letters, as far as it is known. It has not if those that
            cannot be decrypted are as many as may be fetched ahead.
        """
        all_sent = True
        try:
            for topic in list(self._open_partitions):
                now = self._source.unsettled(topic, self.states)
                all_sent &= now.all_sent
                if not now.unseen or silence > (_ON_ITS_WAY if now.all_sent else _STUCK):
                    del self._open_partitions[topic]
        except AdminError:
            if silence > _STUCK:
                self._open_partitions.clear()
        return all_sent

    # -- handing on -------------------------------------------------------------------------------

    def _send_waiting(self) -> None:
        """Hand the waiting letters on, each at its turn; failed ones go first."""
        while self._waiting and self._goes_on:
            now = time.monotonic()
            pause = max(self._waiting[0].due, self._next_turn) - now
            if pause <= 0 and self._in_flight < self._room and self._consumer.is_connected():
                self._next_turn = max(self._next_turn, now - _BEHIND) + 1 / self._rate
                self._send(self._waiting.popleft())
            else:
                self._cancelled.wait(min(max(pause, 0.002), 0.1))
            self._check()

    def _send(self, item: _Item) -> None:
        with self._lock:
            self._in_flight += 1
        # What a reader gave of a batch is acknowledged at the end; see `Source`.
        later = self._read is not None and item.place.batch >= 0
        source = _LATER if later else self._consumer
        if item.move.letter is None:
            source.acknowledge_async(item.raw, partial(self._acknowledged, item))
            return
        flight = Flight(
            self._hand_off,
            item.raw,
            source,
            item.move.letter,
            item.raw.length(),
            _ItemFuture(self, item),
        )
        self._hand_off.hand_on(flight)

    def _acknowledged(self, item: _Item, result: _pulsar.Result) -> None:
        """Take the result for a letter that is only acknowledged."""
        if result == _pulsar.Result.Ok:
            self.item_done(item)
        else:
            self.item_failed(item, RedriveError(f"a letter could not be acknowledged: {result}"))

    def item_done(self, item: _Item) -> None:
        """Count a letter that was published. Any thread may call it."""
        self.states[item.place] = DONE
        with self._lock:
            self._in_flight -= 1
            self.tally.moved(item.move.letter, item.move.owner)
        self._refused_last = ""

    def item_failed(self, item: _Item, error: BaseException) -> None:
        """Record a letter whose hand-off failed. Any thread may call it."""
        if isinstance(error, AcknowledgeError):
            self.item_done(item)  # it comes again, and is acknowledged then
            return
        self._failed.put((item, error))
        with self._lock:
            self._in_flight -= 1

    def _take_back(self) -> None:
        """Let letters that were not published wait for another try."""
        while not self._failed.empty():  # no other thread takes from it
            item, error = self._failed.get_nowait()
            if isinstance(error.__cause__, _NO_RETRY_ERRORS):
                self._refuse(item, str(error))
                continue
            self._refused_last = str(error)
            self._waiting.appendleft(attrs.evolve(item, due=time.monotonic() + _PAUSE))

    def _refuse(self, item: _Item, why: str) -> None:
        self.states[item.place] = STAYS
        self.tally.left[REFUSED] += 1
        self.tally.problems[why] = None

    # -- between letters --------------------------------------------------------------------------

    @property
    def _goes_on(self) -> bool:
        """Whether letters that were not published are tried again."""
        return self.tally.stopped in {None, LIMIT}

    def _check(self) -> None:
        self._take_back()
        if self._cancelled.is_set() and self._goes_on:
            self.tally.stopped = CANCELLED
        now = time.monotonic()
        if now >= self._next_tick:
            self._tick()
        turn = _PAUSE if self._is_closed else _TURN
        if now - self._turn_began > turn and (self._is_closed or self._consumer.is_connected()):
            self._reopen()

    def _tick(self) -> None:
        now = time.monotonic()
        self._next_tick = now + _TICK
        is_away = not (self._is_closed or self._consumer.is_connected())
        self.tally.waits = "the broker is away" if is_away else self._refused_last or self._unread
        moved = (self.tally.redriven, self.tally.left.total())
        if moved != self._moved or not (self.tally.waits or now - self._hindered_at < _CALM):
            self._moved, self._hindered_since = moved, math.inf
        if self.tally.waits:
            self._hindered_at, self._hindered_since = now, min(now, self._hindered_since)
            if now - self._hindered_since > _PATIENCE and self._goes_on:
                self._give_up(self.tally.waits)
        self._progress()

    def _give_up(self, why: str) -> None:
        self.tally.problems[why] = None
        self.tally.stopped = REFUSED

    # -- the end ----------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Wait for the letters in flight, and until the broker has all acknowledgements."""
        give_up = time.monotonic() + self._hand_off.patience + 1
        while self._in_flight or not self._failed.empty() or (self._waiting and self._goes_on):
            self._check()
            if self._waiting and self._goes_on:
                self._send_waiting()
                give_up = time.monotonic() + self._hand_off.patience + 1
            elif time.monotonic() > give_up:  # acknowledgements without an answer
                break
            else:
                time.sleep(0.005)
        if self.tally.stopped == REFUSED:
            for item in self._waiting:
                self._refuse(item, self.tally.waits)
        if self._read is not None:
            self._source.acknowledge_mixed(self._consumer, self.states)
        unconfirmed = self._confirm()
        if unconfirmed:
            self.tally.left[UNCONFIRMED] += unconfirmed
            self.tally.problems[WHY_UNCONFIRMED] = None

    def _confirm(self) -> int:
        """Wait until the broker has the acknowledgements; return how many it does not have."""
        began, count = time.monotonic(), self.tally.redriven
        again = began + (_AGAIN if self._read is None else 0.0)
        while count:
            self._check()
            time.sleep(_ASK)
            now = time.monotonic()
            with contextlib.suppress(AdminError, pulsar.PulsarException):
                count = self._unconfirmed()
                if count and now > again:
                    self._source.acknowledge_again(self._consumer, self.states)
                    again = time.monotonic() + _AGAIN
            if now - began > (_HURRY if self._cancelled.is_set() else _PATIENCE):
                break
        return count

    def _unconfirmed(self) -> int:
        """Return how many letters are redriven, and not acknowledged as the broker reports it."""
        counts = [self._source.unsettled(each, self.states).done for each in self._source.ends]
        return sum(counts) or not self._consumer.is_connected()

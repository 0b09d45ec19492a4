"""The messages that a consumer has received: where each came from, and how many are unsettled."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import _pulsar

from pulsar_retry.consumer.duplicates import Copies, LetterId
from pulsar_retry.consumer.nacks import Nacks, chunk_ids, chunks_of
from pulsar_retry.consumer.received_letters import ReceivedLetters
from pulsar_retry.consumer.returns import COME_BACK, Returns, Rounds
from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.plan import Plan, topic_list
from pulsar_retry.observe.counting import topic_label
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.runtime.raw import id_of, position_of, raw_of
from pulsar_retry.runtime.timer import Timer
from pulsar_retry.wire.names import logical

#: Messages that follow each other faster than this number of seconds are not all looked at, as long
#: as none of them was chunked: chunked messages are large.
_LOOK_INTERVAL = 0.001

#: At least one in this number of messages is looked at.
_MOST_UNSEEN = 128


class TopicSource:
    """One of pulsar-client's consumers, and the nacks of its messages. Thread-safe.

    Attributes:
        raw: pulsar-client's consumer; None until it is open.
        nacks: The nacks.
    """

    def __init__(self, timer: Timer, returns: Returns, *, redelivers_all: bool) -> None:
        """Start without a raw consumer; see `Nacks` for *redelivers_all*."""
        self.raw: Any = None
        self.nacks = Nacks(timer, redelivers_all=redelivers_all)
        self.nacks.not_retried = returns.not_retried
        self._rounds = Rounds(self.nacks, timer) if redelivers_all else None
        fork.guard(self, "raw", "nacks")

    def come_back(self, message_id: Any, failures: int, chunks: Sequence[Any]) -> None:
        """Have a message redelivered whose hand-off has failed *failures* times."""
        if self._rounds is None:
            self.nacks.add(message_id, COME_BACK.delay(failures), chunks)
        else:
            self._rounds.add(message_id, failures)


class InHand:
    """The messages that a consumer has received from its topic and its retry topic. Thread-safe.

    Attributes:
        main: The source of the topic.
        retry: The source of the retry topic; None without one.
        letters: The letters that came from the retry topic; None without one.
        sources: The one or two sources.
        returns: Which redeliveries are retries.
        received: How many messages were received. Threads add to it without a lock, as they do to
            *settled*.
        settled: How many messages were settled.
        looks_at: The count of received messages at which `look` is due.
        found_nothing: Whether the application has asked for a message, and there was none.
        listens: Whether a listener gets the messages as soon as they come.
        chunks_came: Called with the first chunked message.
    """

    def __init__(self, plan: Plan, timer: Timer, clock: Clock) -> None:
        self.returns = Returns()
        self.main = TopicSource(timer, self.returns, redelivers_all=not plan.shared)
        self.retry: TopicSource | None = None
        self.letters: ReceivedLetters | None = None
        self.sources: tuple[TopicSource, ...] = (self.main,)
        if plan.topics is not None:
            self.retry = TopicSource(timer, self.returns, redelivers_all=False)
            self.letters = ReceivedLetters(plan, clock)
            self.sources = (self.main, self.retry)
        #: What can have copies: not where the broker does not count redeliveries.
        has_copies = plan.ack_timeout and plan.shared and plan.policy is not None
        self._copies = Copies(timer.now) if has_copies else None
        self.received = 0
        self.settled = 0
        self.looks_at = 0
        self.found_nothing = self.listens = False
        self.chunks_came: Callable[[], None] = lambda: None
        self._plan = plan
        self._now = timer.now
        self._has_chunked = False
        self._looked, self._step, self._samples_at = float("-inf"), 1, 0

    def open(self, main: Any, retry: Any) -> None:
        """Store the raw consumers of the topic and of the retry topic."""
        for source, raw in zip(self.sources, (main, retry), strict=False):
            source.raw = source.nacks.raw = raw

    def is_letter(self, message: Any) -> bool:
        """Tell whether *message*, or the message of an id, came from the retry topic."""
        return self.letters is not None and self.letters.includes(message)

    def source(self, *, letter: bool) -> TopicSource:
        """Return the source of the retry topic or of the topic."""
        return self.retry if letter and self.retry is not None else self.main

    # -- receiving ------------------------------------------------------------------------------

    def letter_came(self, raw: Any) -> None:
        """Record a raw letter, before it is delivered."""
        if self.letters is not None:
            self.letters.came(raw)

    def took(self, messages: Sequence[Any]) -> None:
        """Count messages that are delivered to the application; they may be raw or not."""
        count = len(messages)
        self.received += count  # CPython switches no thread in such a line: no count is lost
        if self.received >= self.looks_at:
            self.look(messages)

    def look(self, messages: Sequence[Any]) -> None:
        """Look at received *messages*: whether they were nacked, and whether they are chunked."""
        if self.received >= self._samples_at:
            self._look_for_chunked(messages)
        self.looks_at = self._samples_at
        if self._plan.ack_timeout or any(each.nacks.pending for each in self.sources):
            self.looks_at = 0
            for each in messages:
                self._came(each)

    def _came(self, message: Any) -> None:
        """Cancel the nack of a message that comes early, and begin its time-out."""
        raw, time_out = raw_of(message), self._plan.ack_timeout
        letter, message_id = self.is_letter(message), raw.message_id()
        nacks = self.source(letter=letter).nacks
        nacks.came(message_id)
        if time_out:
            with contextlib.suppress(RuntimeError):  # no thread can be started: the next one tries
                chunks = self._chunks(raw, message_id, nacks, letter=letter)
                nacks.time_out(message_id, time_out, chunks)

    def _look_for_chunked(self, messages: Sequence[Any]) -> None:
        """Look at each message, or at high rates at some of them."""
        for each in messages[:: self._step]:
            message_id, letter = id_of(each), self.is_letter(each)
            nacks = self.source(letter=letter).nacks
            if nacks.saw(message_id):
                self._has_chunks()
            if self.letters is not None and not letter:
                self.letters.saw_other(message_id.ledger_id())
        now, interval = self._now(), _LOOK_INTERVAL * len(messages)
        if self._has_chunked or now - self._looked > 10 * interval:
            self._step = 1
        elif now - self._looked < interval:
            self._step = min(2 * self._step, _MOST_UNSEEN)
            if self.letters is not None:
                self.letters.knows_all = False
        self._looked = now
        self._samples_at = self.received + self._step

    def _has_chunks(self) -> None:
        if not self._has_chunked:
            with contextlib.suppress(RuntimeError):  # no thread can be started: the next one tries
                self.chunks_came()
                self._has_chunked = True

    def ran_dry(self) -> None:
        """Record that the application has asked for a message, and there was none."""
        self.found_nothing = True

    @property
    def is_waiting(self) -> bool:
        """Whether the application gets each message at once."""
        return self.found_nothing or self.listens

    def is_copy(self, raw: Any) -> bool:
        """Tell whether a received message is a copy of a settled one; then it is done with."""
        if self._copies is None:
            return False
        found = self._copies.find(position_of(raw.message_id()), raw.redelivery_count())
        if found:  # perhaps the acknowledgement was lost
            self.source(letter=self.is_letter(raw)).raw.acknowledge(raw)
        self.received += found is not None
        return found is not None

    # -- settling -------------------------------------------------------------------------------

    def acknowledged(self, message: Any, source: TopicSource) -> None:
        """Count a message, or that of an id, that was acknowledged at *source*."""
        self.settled += 1
        if self._was_requested(message, source) and self._copies is not None:
            self._copies.settled(position_of(id_of(message)), is_acknowledged=True)

    def _was_requested(self, message: Any, source: TopicSource) -> bool:
        """Cancel the nack of a settled message; tell whether a copy is under way nevertheless."""
        cancelled = source.nacks.cancel(id_of(message)) if source.nacks.pending else 0
        return self._copies is not None and not cancelled

    def leaves(self, message: Any) -> tuple[Any, bool, Callable[[], None] | None]:
        """Count a message that is handed on.

        Returns:
            Its raw consumer; whether it is a letter; and what to call when the hand-off has
            succeeded.
        """
        letter = self.is_letter(message)
        source = self.source(letter=letter)
        was_requested = self._was_requested(message, source)
        self.settled += 1  # undone if the hand-off fails
        if not was_requested and not letter:
            return source.raw, False, None
        place = position_of(id_of(message))
        if was_requested and self._copies is not None:
            self._copies.settled(place, is_acknowledged=False)
        if letter and self.letters is not None:
            self.letters.leaves(place)
        return source.raw, letter, partial(self._has_left, place, letter=letter)

    def _has_left(self, place: LetterId, *, letter: bool) -> None:
        if self._copies is not None:
            self._copies.left(place)
        if letter and self.letters is not None:
            self.letters.window.settled(place)

    def stays(self, message: Any) -> None:
        """Record that a message, or that of an id, is delivered again, and needed then."""
        if self._copies is not None:
            self._copies.comes_again(position_of(id_of(message)))

    def moved(self) -> None:
        """Drop what was known of messages of the topic: its subscription was moved."""
        self.main.nacks.clear()
        self.returns.moved()
        if self._copies is not None:
            self._copies.clear()
        if self.letters is not None:
            self.letters.window.clear()

    # -- redeliveries ---------------------------------------------------------------------------

    def nack(self, message: Any, *, letter: bool) -> Callable[[float], None]:
        """Return a function that has a message, or that of an id, redelivered after a delay.

        The function keeps only the id of the message, and takes the seconds of the delay.

        Raises:
            ConfigError: it is the id of a chunked message that can be from any topic of a pattern.
        """
        self.stays(message)
        raw, nacks = raw_of(message), self.source(letter=letter).nacks
        message_id = raw.message_id() if isinstance(raw, _pulsar.Message) else raw
        chunks = self._chunks(raw, message_id, nacks, letter=letter)
        return partial(self._nack, nacks, message_id, chunks)

    def _nack(self, nacks: Nacks, message_id: Any, chunks: Sequence[Any], delay: float) -> None:
        nacks.add(message_id, delay, chunks)
        self.looks_at = 0  # each message can be a nacked one now

    def come_back(self, raw: Any, *, letter: bool) -> None:
        """Have a message redelivered that could not be handed on: later each time."""
        self.stays(raw)
        failures, source = self.returns.failed(raw), self.source(letter=letter)
        message_id = raw.message_id()
        chunks = self._chunks(raw, message_id, source.nacks, letter=letter)
        source.come_back(message_id, failures, chunks)
        self.looks_at = 0

    def _chunks(self, raw: Any, message_id: Any, nacks: Nacks, *, letter: bool) -> Sequence[Any]:
        """Return the ids of the chunks of a raw message, or that of an id, if a nack needs them."""
        if nacks.redelivers_all or chunks_of(message_id) is None:
            return ()
        nacks.saw(message_id)
        self._has_chunks()
        if raw is not message_id:
            return chunk_ids(message_id, [raw.topic_name()])
        topics = self._plan.topics.retry if letter and self._plan.topics else self._plan.topic
        if isinstance(topics, re.Pattern):
            raise ConfigError.bad(
                "message", message_id, "a message: the id of a chunked one does not name its topic"
            )
        part = "" if (number := message_id.partition()) < 0 else f"-partition-{number}"
        names = [f"{topic_label(logical(each))}{part}" for each in topic_list(topics)]
        return chunk_ids(message_id, names)

    # -- what the broker counts -----------------------------------------------------------------

    @property
    def pending_nacks(self) -> int:
        """How many nacked messages wait for their delay."""
        return sum(len(each.nacks) for each in self.sources)

    @property
    def unsettled(self) -> int:
        """About how many messages were received, and are neither settled nor redelivered."""
        return max(0, self.received - self.settled - self._redelivered())

    def all_redelivered(self) -> None:
        """Record that the broker redelivers everything that is not acknowledged."""
        self.settled = self.received - self._redelivered()

    def _redelivered(self) -> int:
        return sum(each.nacks.redelivered for each in self.sources)

    def gauges(self) -> Mapping[str, float]:
        """Return the current values for the metrics."""
        return {
            "nacks_pending": float(self.pending_nacks),
            "unsettled": float(self.unsettled),
        }

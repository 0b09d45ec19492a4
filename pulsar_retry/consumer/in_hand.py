"""The messages that a consumer has received: where each came from, and how it is settled."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import _pulsar

from pulsar_retry.consumer.duplicates import Copies
from pulsar_retry.consumer.received_letters import ReceivedLetters
from pulsar_retry.consumer.returns import Returns
from pulsar_retry.consumer.source import ACKS_SENT, Source, chunk_ids, chunks_of
from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.plan import Plan, topic_list
from pulsar_retry.observe.counting import topic_label
from pulsar_retry.observe.watch import ACKNOWLEDGED, SUPERSEDED, Watch
from pulsar_retry.runtime.clock import Clock, Timer
from pulsar_retry.runtime.upstream import Message, id_of, is_whole_batch, position_of, raw_of
from pulsar_retry.wire.names import logical
from pulsar_retry.wire.properties import reconsume_times

#: Messages that follow each other faster than this number of seconds are not all looked at, as long
#: as none of them was chunked: chunked messages are large.
_LOOK_INTERVAL = 0.001

#: At least one in this number of messages is looked at.
_MOST_UNSEEN = 128


class InHand:
    """The messages that a consumer has received from its topic and its retry topic. Thread-safe.

    It acknowledges and nacks each of them at the source that the message came from.

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

    def __init__(self, plan: Plan, timer: Timer, clock: Clock, watch: Watch) -> None:
        self.returns = Returns()
        self.main = Source(timer, self.returns.not_retried, redelivers_all=not plan.shared)
        self.retry: Source | None = None
        self.letters: ReceivedLetters | None = None
        self.sources: tuple[Source, ...] = (self.main,)
        if plan.topics is not None:
            self.retry = Source(timer, self.returns.not_retried)
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
        self._watch = watch
        self._now = timer.now
        self._clock = clock
        self._settled_before = 0  # when all acknowledgements so far had been sent
        self._has_chunked = False
        self._looked, self._step, self._samples_at = float("-inf"), 1, 0

    def open(self, main: Any, retry: Any) -> None:
        """Store the raw consumers of the topic and of the retry topic."""
        for source, raw in zip(self.sources, (main, retry), strict=False):
            source.raw = raw

    def is_letter(self, message: Any) -> bool:
        """Tell whether *message*, or the message of an id, came from the retry topic."""
        return self.letters is not None and self.letters.includes(message)

    def source(self, *, letter: bool) -> Source:
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
        if self._plan.ack_timeout or any(each.pending for each in self.sources):
            self.looks_at = 0
            for each in messages:
                self._came(each)

    def _came(self, message: Any) -> None:
        """Cancel the nack of a message that comes early, and begin its time-out."""
        raw, time_out = raw_of(message), self._plan.ack_timeout
        letter, message_id = self.is_letter(message), raw.message_id()
        source = self.source(letter=letter)
        source.came(message_id)
        if time_out:
            with contextlib.suppress(RuntimeError):  # no thread can be started: the next one tries
                chunks = self._chunks(raw, message_id, source, letter=letter)
                source.time_out(message_id, time_out, chunks)

    def _look_for_chunked(self, messages: Sequence[Any]) -> None:
        """Look at each message, or at high rates at some of them."""
        for each in messages[:: self._step]:
            message_id, letter = id_of(each), self.is_letter(each)
            if self.source(letter=letter).saw(message_id):
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

    # -- acknowledgements -----------------------------------------------------------------------

    def acknowledge(self, message: Any) -> None:
        """Acknowledge a message or an id."""
        _check_id(message)
        self._acknowledge(message, letter=self.is_letter(message))
        self._watch.settled(ACKNOWLEDGED)
        if isinstance(message, Message):
            message.settled = True

    def settle_as(self, message: Any, outcome: str) -> None:
        """Acknowledge a message that was not handled successfully, and count it as *outcome*."""
        self._acknowledge(message, letter=self.is_letter(message), handled=outcome != SUPERSEDED)
        self._watch.settled(outcome)

    def _acknowledge(self, message: Any, *, letter: bool, handled: bool = True) -> None:
        source = self.source(letter=letter)
        if letter and self.letters is not None:
            source.raw.acknowledge(self.letters.located(message))
            self.letters.acknowledged(message, handled=handled)
        else:
            source.raw.acknowledge(raw_of(message))
        self.settled += 1
        if self._was_requested(message, source) and self._copies is not None:
            self._copies.settled(position_of(id_of(message)), is_acknowledged=True)

    def up_to(self, message: Any) -> Callable[[], None]:
        """Return a function that acknowledges everything up to *message*, as of now."""
        _check_id(message)
        if self.letters is None or self._plan.shared or not self.letters.includes(message):
            return partial(self._acknowledge_up_to, message)
        earlier = self.letters.up_to(message)

        def acknowledge() -> None:
            for message_id in earlier:
                self._acknowledge(message_id, letter=True)
                self._watch.settled(ACKNOWLEDGED)

        return acknowledge

    def _acknowledge_up_to(self, message: Any) -> None:
        self.main.raw.acknowledge_cumulative(raw_of(message))
        self.all_redelivered()
        if self.main.pending:
            is_one = isinstance(self._plan.topic, str)
            self.main.cancel_up_to(id_of(message), one_topic=is_one)
        self._watch.settled(ACKNOWLEDGED)

    def _was_requested(self, message: Any, source: Source) -> bool:
        """Cancel the nack of a settled message; tell whether a copy is under way nevertheless."""
        cancelled = source.cancel(id_of(message)) if source.pending else 0
        return self._copies is not None and not cancelled

    # -- hand-offs ------------------------------------------------------------------------------

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
        if was_requested and self._copies is not None:
            self._copies.settled(position_of(id_of(message)), is_acknowledged=False)
        if not letter or self.letters is None:
            return source.raw, False, None
        place = position_of(id_of(message))
        self.letters.leaves(place)
        return source.raw, True, partial(self.letters.window.settled, place)

    def hand_off_failed(self, raw: Any, was_letter: bool) -> None:
        """Have a message redelivered whose letter has failed."""
        self.settled -= 1
        self.come_back(raw, letter=was_letter)

    def come_back(self, raw: Any, *, letter: bool) -> None:
        """Have a message redelivered that could not be handed on: later each time."""
        source, message_id, chunks = self._wanted_again(raw, letter=letter)
        source.come_back(message_id, self.returns.failed(raw), chunks)
        self.looks_at = 0

    def moved(self) -> None:
        """Drop what was known of messages of the topic: its subscription was moved."""
        self.main.clear()
        self.returns.moved()
        if self._copies is not None:
            self._copies.clear()
        if self.letters is not None:
            self.letters.window.clear()

    # -- redeliveries ---------------------------------------------------------------------------

    def nack(self, message: Any, raw: Any, wait: float | None) -> None:
        """Have a message, or the message of an id, redelivered in *wait* seconds.

        If *wait* is None, the delay of the plan is used; it depends on the number of deliveries.
        *raw* is the raw *message*.

        Raises:
            TypeError: *message* is neither a message nor an id.
            ConfigError: it is the id of a chunked message that can be from any topic of a pattern.
        """
        if not isinstance(raw, _pulsar.Message | _pulsar.MessageId):
            raise TypeError(f"expected a message or a message id, not {message!r}")
        letter = self.is_letter(message)
        if wait is None:
            wait = self._plan.nack_backoff.delay(self._deliveries(raw, letter=letter))
        self.redeliver(raw, wait, letter=letter)
        # The broker counts nothing there. Several nacks of one delivery are one retry.
        if not self._plan.shared and not letter and not getattr(message, "is_nacked", False):
            self.returns.nacked(id_of(raw))
            if isinstance(message, Message):
                message.is_nacked = True
        self._watch.retried(raw, "nack", wait)

    def _deliveries(self, raw: Any, *, letter: bool) -> int:
        """Return how often a message was delivered, as a letter too; 1 for an id."""
        if not isinstance(raw, _pulsar.Message):
            return 1
        retries = 0
        if letter:
            with contextlib.suppress(UnicodeDecodeError):  # pulsar-client cannot read them
                retries = reconsume_times(raw.properties())
        return self.returns.attempts_before(raw) + retries + 1

    def redeliver(self, raw: Any, delay: float, *, letter: bool) -> None:
        """Have a raw message, or that of an id, redelivered after *delay* seconds."""
        source, message_id, chunks = self._wanted_again(raw, letter=letter)
        source.add(message_id, delay, chunks)
        self.looks_at = 0  # each message can be a nacked one now

    def _wanted_again(self, raw: Any, *, letter: bool) -> tuple[Source, Any, Sequence[Any]]:
        """Record that a message is redelivered, and needed then.

        Returns:
            Its source, its raw id, and the ids of its chunks if a nack needs them.
        """
        source, message_id = self.source(letter=letter), id_of(raw)
        if raw is message_id:
            self._name_partition(message_id, letter=letter)
        if self._copies is not None:
            self._copies.comes_again(position_of(message_id))
        return source, message_id, self._chunks(raw, message_id, source, letter=letter)

    def await_acknowledgements(self) -> None:
        """Wait until pulsar-client has sent all acknowledgements so far."""
        if self.settled != self._settled_before:
            self._clock.sleep(ACKS_SENT)
            self._settled_before = self.settled

    def redeliver_everything(self) -> None:
        """Have all unacknowledged messages redelivered, including nacked ones.

        pulsar-client sends acknowledgements late, but this request at once. So it is made after
        those since the last one.
        """
        waits = self.settled != self._settled_before
        if self.letters is not None:
            self.letters.all_come_again()
        for source in self.sources:
            source.ask_for_all(waits=waits)
        self.all_redelivered()
        self._settled_before = self.settled

    def close(self) -> None:
        """Drop pending nacks: the broker redelivers these messages at once."""
        for source in self.sources:
            source.close()

    def _chunks(self, raw: Any, message_id: Any, source: Source, *, letter: bool) -> Sequence[Any]:
        """Return the ids of the chunks of a raw message, or that of an id, if a nack needs them."""
        if source.redelivers_all or chunks_of(message_id) is None:
            return ()
        source.saw(message_id)
        self._has_chunks()
        if raw is not message_id:
            return chunk_ids(message_id, [raw.topic_name()])
        topics = self._topics(letter=letter)
        if isinstance(topics, re.Pattern):
            raise ConfigError.bad(
                "message", message_id, "a message: the id of a chunked one does not name its topic"
            )
        return chunk_ids(message_id, [_part(each, message_id) for each in topic_list(topics)])

    def _topics(self, *, letter: bool) -> Any:
        return self._plan.topics.retry if letter and self._plan.topics else self._plan.topic

    def _name_partition(self, message_id: Any, *, letter: bool) -> None:
        """Have a raw id name its partition: pulsar-client ignores nacks of ids made from bytes."""
        topic = self._topics(letter=letter)
        if isinstance(topic, str) and message_id.partition() >= 0:
            message_id.topic_name(_part(topic, message_id))

    # -- what the broker counts -----------------------------------------------------------------

    @property
    def pending_nacks(self) -> int:
        """How many nacked messages wait for their delay."""
        return sum(each.nacked for each in self.sources)

    @property
    def unsettled(self) -> int:
        """About how many messages were received, and are neither settled nor redelivered."""
        return max(0, self.received - self.settled - self._redelivered())

    def all_redelivered(self) -> None:
        """Record that the broker redelivers everything that is not acknowledged."""
        self.settled = self.received - self._redelivered()

    def _redelivered(self) -> int:
        return sum(each.redelivered for each in self.sources)

    def gauges(self) -> Mapping[str, float]:
        """Return the current values for the metrics."""
        return {
            "nacks_pending": float(self.pending_nacks),
            "unsettled": float(self.unsettled),
        }


def _part(topic: str, message_id: Any) -> str:
    """Return the full name of the topic, or of its partition, that a raw id belongs to."""
    part = "" if (number := message_id.partition()) < 0 else f"-partition-{number}"
    return f"{topic_label(logical(topic))}{part}"


def _check_id(message: Any) -> None:
    """Check that the rest of a batch is not acknowledged with an id.

    Raises:
        ConfigError: it would be.
    """
    raw = raw_of(message)
    if isinstance(raw, _pulsar.MessageId) and is_whole_batch(raw):
        accepted = (
            "a message, or what its message_id() returned: pulsar-client takes an id of a message "
            "in a batch that was made from bytes for the whole batch"
        )
        raise ConfigError.bad("message", raw, accepted)

"""The messages that a consumer has received: where each came from, and how it is settled."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import _pulsar

from pulsar_retry.consumer.handoff.sending import Flight
from pulsar_retry.consumer.received_letters import ReceivedLetters
from pulsar_retry.consumer.returns import Returns
from pulsar_retry.consumer.source import ACKS_SENT, Source, chunk_ids, chunks_of, place_of
from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.plan import Plan, topic_list
from pulsar_retry.observe.counting import ACKNOWLEDGED, topic_label
from pulsar_retry.observe.watch import SUPERSEDED, Watch
from pulsar_retry.runtime.clock import Clock, Timer
from pulsar_retry.runtime.upstream import Message, id_of, is_whole_batch, raw_of
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
        retry: The source of the retry topic, which knows its letters; None without one.
        sources: The one or two sources.
        returns: What is known of messages that can come again.
        has_copies: Whether there can be copies of settled messages.
        received: How many messages were received. Threads add to it without a lock, as they do to
            *settled*.
        settled: How many messages were acknowledged, or handed on. It only grows.
        leaving: How many messages have a letter that is not settled yet.
        given_back: How many messages were received, and are redelivered without a nack.
        looks_at: The count of received messages at which `look` is due.
        listens: Whether a listener gets the messages as soon as they come.
        chunks_came: Called with the first chunked message.
    """

    def __init__(self, plan: Plan, timer: Timer, clock: Clock, watch: Watch) -> None:
        self.returns = Returns(timer.now, plan.ack_timeout)
        not_retried = self.returns.not_retried
        self.main = Source(timer, not_retried, redelivers_all=not plan.shared)
        self.retry: ReceivedLetters | None = None
        self.sources: tuple[Source, ...] = (self.main,)
        if plan.topics is not None:
            self.retry = ReceivedLetters(plan, timer, clock, not_retried)
            self.sources = (self.main, self.retry)
        # Not where the broker does not count redeliveries.
        self.has_copies = bool(plan.ack_timeout and plan.shared and plan.policy is not None)
        self.received = 0
        self.settled = 0
        self.leaving = 0
        self.given_back = 0
        self.looks_at = 0
        self.listens = False
        self.chunks_came: Callable[[], None] = lambda: None
        self._plan = plan
        self._watch = watch
        self._now = timer.now
        self._clock = clock
        # With so many settled messages, all acknowledgements are sent from this time on.
        self._sent_count, self._all_sent = 0, float("-inf")
        self._has_chunked = False
        self._looked, self._step, self._samples_at = float("-inf"), 1, 0

    def open(self, main: Any, retry: Any) -> None:
        """Store the raw consumers of the topic and of the retry topic."""
        for source, raw in zip(self.sources, (main, retry), strict=False):
            source.raw = raw

    def source_of(self, message: Any) -> Source:
        """Return where *message*, or the message of an id, came from.

        Raises:
            ConfigError: that cannot be told of the id.
        """
        retry = self.retry
        return self.main if retry is None or not retry.includes(message) else retry

    def is_letter(self, message: Any) -> bool:
        """Tell whether *message*, or the message of an id, came from the retry topic."""
        return self.source_of(message) is not self.main

    # -- receiving ------------------------------------------------------------------------------

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
        is_pending = self.main.pending or (self.retry is not None and self.retry.pending)
        if is_pending or self._plan.ack_timeout:
            self.looks_at = 0
            for each in messages:
                self._came(each)

    def _came(self, message: Any) -> None:
        """Cancel the nack of a message that comes early, and begin its time-out."""
        raw, time_out, source = raw_of(message), self._plan.ack_timeout, self.source_of(message)
        message_id = raw.message_id()
        source.came(message_id)
        if time_out:
            with contextlib.suppress(RuntimeError):  # no thread can be started: the next one tries
                source.time_out(message_id, time_out, self._chunks(raw, message_id, source))

    def _look_for_chunked(self, messages: Sequence[Any]) -> None:
        """Look at each message, or at high rates at some of them."""
        for each in messages[:: self._step]:
            message_id, source = id_of(each), self.source_of(each)
            if source.saw(message_id):
                self._has_chunks()
            if self.retry is not None and source is self.main:
                self.retry.saw_other(message_id.ledger_id())
        now, interval = self._now(), _LOOK_INTERVAL * len(messages)
        if self._has_chunked or now - self._looked > 10 * interval:
            self._step = 1
        elif now - self._looked < interval:
            self._step = min(2 * self._step, _MOST_UNSEEN)
            if self.retry is not None:
                self.retry.knows_all = False
        self._looked = now
        self._samples_at = self.received + self._step

    def _has_chunks(self) -> None:
        if not self._has_chunked:
            with contextlib.suppress(RuntimeError):  # no thread can be started: the next one tries
                self.chunks_came()
                self._has_chunked = True

    def is_copy(self, raw: Any) -> bool:
        """Tell whether a received message is a copy of a settled one; then it is done with."""
        found = self.returns.is_copy(raw)
        if found:  # perhaps the acknowledgement was lost
            self.source_of(raw).raw.acknowledge(raw)
            self._settled_in_batch(raw.message_id())
        self.received += found is not None
        return found is not None

    # -- acknowledgements -----------------------------------------------------------------------

    def acknowledge(self, message: Any, outcome: str = ACKNOWLEDGED) -> None:
        """Acknowledge a message or an id, and count it as *outcome*."""
        if not isinstance(message, Message):
            _check_id(message)
        self._acknowledge(message, self.source_of(message), outcome)
        if isinstance(message, Message):
            message.settled = True

    def _acknowledge(self, message: Any, source: Source, outcome: str) -> None:
        raw, message_id, retry = raw_of(message), id_of(message), self.retry
        if raw is message_id:
            self._name_partition(message_id, source)
        source.raw.acknowledge(raw)
        self.settled += 1
        self._is_done(source, message_id, is_acknowledged=True)
        if retry is not None and source is retry:
            retry.window.settled(place_of(message_id), handled=outcome != SUPERSEDED)
        self._watch.settled(outcome)

    def _is_done(self, source: Source, message_id: Any, *, is_acknowledged: bool) -> None:
        """Cancel the nack of a settled message; without one, a copy may be under way.

        A copy can also come with the rest of its batch.
        """
        source.leaves(message_id)
        cancelled = source.cancel(message_id) if source.pending else 0
        if self.has_copies and (not cancelled or message_id.batch_index() >= 0):
            self.returns.settled(
                message_id, is_acknowledged=is_acknowledged, was_requested=not cancelled
            )

    def _settled_in_batch(self, message_id: Any) -> None:
        """Record that a settled message can come again, with others of its batch."""
        if message_id.batch_index() >= 0:
            self.returns.settled(message_id, is_acknowledged=True, was_requested=False)

    def up_to(self, message: Any) -> Callable[[], None]:
        """Return a function that acknowledges everything up to *message*, as of now."""
        _check_id(message)
        retry = self.retry
        if retry is None or self._plan.shared or not retry.includes(message):
            return partial(self._acknowledge_up_to, message)
        earlier = retry.up_to(message)

        def acknowledge() -> None:
            for message_id in earlier:
                self._acknowledge(message_id, retry, ACKNOWLEDGED)

        return acknowledge

    def _acknowledge_up_to(self, message: Any) -> None:
        self.main.raw.acknowledge_cumulative(raw_of(message))
        self.settled += 1  # however many it covers
        self.all_redelivered()
        if self.main.pending:
            is_one = isinstance(self._plan.topic, str)
            self.main.cancel_up_to(id_of(message), one_topic=is_one)
        self._watch.settled(ACKNOWLEDGED)

    # -- hand-offs ------------------------------------------------------------------------------

    def leaves(self, message: Any) -> Any:
        """Record that a message is being handed on; return its raw consumer."""
        source, message_id = self.source_of(message), id_of(message)
        self.leaving += 1
        self._is_done(source, message_id, is_acknowledged=False)  # undone if the hand-off fails
        return source.raw

    def handed_on(self, flights: Sequence[Flight]) -> None:
        """Record that messages are handed on."""
        count, retry = len(flights), self.retry
        self.leaving -= count
        self.settled += count
        if retry is not None:
            for each in flights:
                if each.source is retry.raw:
                    retry.window.settled(place_of(each.raw.message_id()))
        if self.has_copies:
            for each in flights:
                self._settled_in_batch(each.raw.message_id())

    def hand_off_failed(self, raw: Any) -> None:
        """Have a message redelivered whose letter has failed."""
        self.leaving -= 1
        self.come_back(raw)

    def come_back(self, raw: Any) -> None:
        """Have a message redelivered that could not be handed on: later each time."""
        source, message_id, chunks = self._wanted_again(raw)
        source.come_back(message_id, self.returns.failed(raw), chunks)
        self.looks_at = 0

    def moved(self) -> None:
        """Drop what was known of messages of the topic: its subscription was moved."""
        self.main.clear()
        self.returns.moved()
        if self.retry is not None:
            self.retry.window.clear()

    # -- redeliveries ---------------------------------------------------------------------------

    def nack(self, message: Any, raw: Any, wait: float | None) -> None:
        """Have a message, or the message of an id, redelivered in *wait* seconds.

        If *wait* is None, the delay of the plan is used; it depends on the number of deliveries.
        *raw* is the raw *message*.

        Raises:
            TypeError: *message* is neither a message nor an id.
            ConfigError: it is the id of a chunked message that can be from any topic of a pattern.
        """
        _check_kind(message, raw)
        is_letter = self.is_letter(message)
        if wait is None:
            wait = self._plan.nack_backoff.delay(self._deliveries(raw, letter=is_letter))
        self.redeliver(message, wait)
        # The broker counts nothing there. Several nacks of one delivery are one retry.
        if not self._plan.shared and not is_letter and not getattr(message, "is_nacked", False):
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

    def redeliver(self, message: Any, delay: float) -> None:
        """Have a message, raw or not, or that of an id, redelivered after *delay* seconds."""
        source, message_id, chunks = self._wanted_again(message)
        source.add(message_id, delay, chunks, is_named=raw_of(message) is not message_id)
        self.looks_at = 0  # each message can be a nacked one now

    def _wanted_again(self, message: Any) -> tuple[Source, Any, Sequence[Any]]:
        """Record that a message is redelivered, and needed then.

        Returns:
            Its source, its raw id, and the ids of its chunks if a nack needs them.
        """
        source, raw, message_id = self.source_of(message), raw_of(message), id_of(message)
        if raw is message_id:
            self._name_partition(message_id, source)
        if self.has_copies:
            self.returns.comes_again(message_id)
        return source, message_id, self._chunks(raw, message_id, source)

    def await_acknowledgements(self) -> None:
        """Wait, before a seek, until pulsar-client has sent all acknowledgements so far."""
        if left := self._unsent():
            self._clock.sleep(left)

    def redeliver_everything(self) -> None:
        """Have all unacknowledged messages redelivered, including nacked ones.

        pulsar-client sends acknowledgements late, but this request at once. So it is made after
        all acknowledgements so far.
        """
        waits = self._unsent() > 0
        for source in self.sources:
            source.ask_for_all(waits=waits)
        self.all_redelivered()

    def _unsent(self) -> float:
        """Return in how many seconds pulsar-client has sent all acknowledgements so far."""
        settled, now = self.settled, self._now()
        if settled != self._sent_count or self.leaving:
            self._sent_count, self._all_sent = settled, now + ACKS_SENT
        return max(0.0, self._all_sent - now)

    def close(self) -> None:
        """Drop pending nacks: the broker redelivers these messages at once."""
        for source in self.sources:
            source.close()

    def _chunks(self, raw: Any, message_id: Any, source: Source) -> Sequence[Any]:
        """Return the ids of the chunks of a raw message, or that of an id, if a nack needs them."""
        if source.redelivers_all or chunks_of(message_id) is None:
            return ()
        source.saw(message_id)
        self._has_chunks()
        if raw is not message_id:
            return chunk_ids(message_id, [raw.topic_name()])
        topics = self._topics(source)
        if isinstance(topics, re.Pattern):
            raise ConfigError.bad(
                "message", message_id, "a message: the id of a chunked one does not name its topic"
            )
        return chunk_ids(message_id, [_part(each, message_id) for each in topic_list(topics)])

    def _topics(self, source: Source) -> Any:
        plan = self._plan
        return plan.topics.retry if source is self.retry and plan.topics else plan.topic

    def _name_partition(self, message_id: Any, source: Source) -> None:
        """Have a raw id name its partition: pulsar-client ignores it otherwise, made from bytes."""
        topic = self._topics(source)
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
        # Some that were given back can be settled nevertheless, but none that leaves is.
        return max(self.leaving, self._left() - self.given_back)

    def all_redelivered(self) -> None:
        """Record that the broker redelivers everything that is not acknowledged or handed on."""
        self.given_back = self._left() - self.leaving

    def _left(self) -> int:
        return self.received - self.settled - sum(each.redelivered for each in self.sources)

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


def _check_kind(message: Any, raw: Any) -> None:
    """Check that *raw*, that of *message*, is a raw message or a raw id, as pulsar-client does."""
    if not isinstance(raw, _pulsar.Message | _pulsar.MessageId):
        raise TypeError(f"expected a message or a message id, not {message!r}")


def _check_id(message: Any) -> None:
    """Check that the rest of a batch is not acknowledged with an id.

    Raises:
        ConfigError: it would be.
        TypeError: *message* is neither a message nor an id.
    """
    raw = raw_of(message)
    _check_kind(message, raw)
    if isinstance(raw, _pulsar.MessageId) and is_whole_batch(raw):
        accepted = (
            "a message, or what its message_id() returned: pulsar-client takes an id of a message "
            "in a batch that was made from bytes for the whole batch"
        )
        raise ConfigError.bad("message", raw, accepted)

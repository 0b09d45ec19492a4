"""The messages that a consumer has received: where each came from, and how many are unsettled."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pulsar

from pulsar_retry.consumer.nacks.awaited import State
from pulsar_retry.consumer.nacks.chunks import ChunkedId, may_be_chunked, with_chunks
from pulsar_retry.consumer.nacks.queue import NackQueue
from pulsar_retry.consumer.nacks.returns import COME_BACK, Returns, Rounds
from pulsar_retry.consumer.received_letters import ReceivedLetters
from pulsar_retry.letters.plan import Plan, topic_list
from pulsar_retry.observe.watch import topic_label
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.runtime.raw import id_of, raw_of
from pulsar_retry.runtime.timer import Timer
from pulsar_retry.wire.names import logical

#: At high rates, about one message in this number of seconds is checked.
_CHECK_INTERVAL = 0.001

#: At least one in this number of messages is checked.
_MOST_UNCHECKED = 128

#: Seconds after a failed hand-off in which each message is checked. Its own message waits less.
_AFTER_FAILURE = 60.0


class TopicSource:
    """One of pulsar-client's consumers, and the nacks of its messages. Thread-safe.

    Attributes:
        raw: pulsar-client's consumer; None until it is open.
        nacks: The nacks.
    """

    def __init__(self, timer: Timer, returns: Returns, *, redelivers_all: bool) -> None:
        """Start without a raw consumer; see `NackQueue` for *redelivers_all*."""
        self.raw: Any = None
        self.nacks = NackQueue(timer, redelivers_all=redelivers_all)
        self.nacks.asked_again = returns.asked_again
        self._rounds = Rounds(self.nacks, timer) if redelivers_all else None
        fork.guard(self, "raw", "nacks")

    def open(self, raw: Any) -> None:
        """Store the raw consumer."""
        self.raw = self.nacks.raw = raw

    def come_back(self, message_id: Any, failures: int) -> None:
        """Have a message redelivered whose hand-off has failed *failures* times."""
        if self._rounds is None:
            self.nacks.add(message_id, COME_BACK.delay(failures))
        else:
            self._rounds.add(message_id, failures)


class InHand:
    """The messages that a consumer has received from its topic and its retry topic. Thread-safe.

    Attributes:
        main: The source of the topic.
        retry: The source of the retry topic; None without one.
        letters: The letters that came from the retry topic; None without one.
        sources: The one or two sources.
        returns: Redeliveries that this process has requested, and that are not retries.
        received: How many messages were received. Threads add to it without a lock, as they do to
            *settled*.
        settled: How many messages were settled.
        looks_at: The count of received messages at which `look` is due.
        is_asking: Whether the application waits for a message, or got none when it last asked.
        letters_in_flight: Returns how many letters of this consumer are in flight.
    """

    def __init__(self, client: pulsar.Client, plan: Plan, timer: Timer, clock: Clock) -> None:
        self.returns = Returns()
        self.main = TopicSource(timer, self.returns, redelivers_all=not plan.shared)
        self.retry: TopicSource | None = None
        self.letters: ReceivedLetters | None = None
        self.sources: tuple[TopicSource, ...] = (self.main,)
        if plan.topics is not None:
            self.retry = TopicSource(timer, self.returns, redelivers_all=False)
            self.letters = ReceivedLetters(client, plan, clock)
            self.sources = (self.main, self.retry)
        this = weakref.ref(self)  # no reference cycle, so that a closed consumer is freed at once

        def state() -> State:
            return State() if (in_hand := this()) is None else in_hand.state()

        for each in self.sources:
            each.nacks.state = state
        self.received = 0
        self.settled = 0
        self.is_asking = False
        self.letters_in_flight: Callable[[], int] = lambda: 0
        self._plan = plan
        self._now = timer.now
        # The topics that messages of a pattern came from: a message id does not include its topic.
        is_pattern = isinstance(plan.topic, re.Pattern)
        self._seen_topics: set[str] | None = set() if is_pattern else None
        #: Whether each received message is checked. If not, only some are checked at high rates.
        self._looks_at_each = is_pattern or bool(plan.ack_timeout)
        self._looks_at_each_until = float("-inf")
        self._looked, self._step = float("-inf"), 1
        self.looks_at = 0

    def is_letter(self, message: Any) -> bool:
        """Tell whether *message*, or the message of an id, came from the retry topic."""
        return self.letters is not None and self.letters.includes(message)

    def source(self, *, letter: bool) -> TopicSource:
        """Return the source of the retry topic or of the topic."""
        return self.retry if letter and self.retry is not None else self.main

    # -- receiving ------------------------------------------------------------------------------

    def took(self, messages: Sequence[Any]) -> None:
        """Count messages that are delivered to the application; they may be raw or not."""
        count = len(messages)
        self.received += count  # CPython switches no thread in such a line: no count is lost
        if self.received >= self.looks_at:
            self.look(messages)

    def hand_off_failed(self) -> None:
        """Count a message that is unsettled again, because its letter has failed.

        If it comes before it is requested, this must be seen, or it would be counted twice.
        """
        self.settled -= 1
        self._looks_at_each_until = self._now() + _AFTER_FAILURE
        self.looks_at = 0

    def look(self, messages: Sequence[Any]) -> None:
        """Check received *messages*."""
        self.is_asking = False
        now = self._now()
        looks_at_each = self._looks_at_each or now < self._looks_at_each_until
        for each in messages[:: 1 if looks_at_each else self._step]:
            self._check_message(raw_of(each))
        if looks_at_each or self._looks_at_each:  # the first chunked message may just have come
            self.looks_at = 0
            return
        interval = _CHECK_INTERVAL * len(messages)
        if now - self._looked < interval:
            self._step = min(2 * self._step, _MOST_UNCHECKED)
        elif now - self._looked > 10 * interval:
            self._step = 1
        self._looked = now
        self.looks_at = self.received + self._step

    def _check_message(self, raw: Any) -> None:
        """Check whether a message is chunked, and whether a nack has requested it."""
        if self._seen_topics is not None:
            self._seen_topics.add(raw.topic_name())
        letter = self.is_letter(raw)
        nacks, message_id = self.source(letter=letter).nacks, self._with_chunks(raw, letter=letter)
        is_chunked = type(message_id) is ChunkedId
        if is_chunked:
            self._looks_at_each = True
        nacks.come(message_id)
        # pulsar-client's time-out redelivers only the last chunk. A nack redelivers all chunks.
        if is_chunked and self._plan.ack_timeout and not nacks.redelivers_all:
            nacks.add(message_id, self._plan.ack_timeout)

    # -- the ids of nacks -----------------------------------------------------------------------

    def nack_id(self, message: Any, *, letter: bool) -> Any:
        """Return the id of a message, or an id, in the form that nacks need."""
        wanted = self._with_chunks(message, letter=letter)
        if type(wanted) is ChunkedId or not self._plan.shared:
            self._looks_at_each = True
            self.looks_at = 0
        return wanted

    def _with_chunks(self, message: Any, *, letter: bool) -> Any:
        message_id = id_of(message)
        if not may_be_chunked(message_id):  # the usual case
            return message_id
        if (raw := raw_of(message)) is not message_id:
            topics: Iterable[str] = (raw.topic_name(),)
        else:
            topics = self._may_be_from(message_id.partition(), letter=letter)
        return with_chunks(message_id, topics)

    def _may_be_from(self, partition: int, *, letter: bool) -> Iterable[str]:
        """Return the full names of the topics, or partitions, that an id can belong to."""
        if letter and self.letters is not None:
            return self.letters.topics
        suffix = f"-partition-{partition}" if partition >= 0 else ""
        if self._seen_topics is not None:
            return [each for each in tuple(self._seen_topics) if each.endswith(suffix)]
        return [f"{topic_label(logical(each))}{suffix}" for each in topic_list(self._plan.topic)]

    # -- what the broker counts -----------------------------------------------------------------

    @property
    def pending_nacks(self) -> int:
        """How many nacked messages wait for their delay."""
        return sum(len(each.nacks.pending) for each in self.sources)

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

    def state(self) -> State:
        """Return the state of the application."""
        return State(self.is_asking, not self.letters_in_flight() and not self.unsettled)

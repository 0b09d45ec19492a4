"""A consumer's acknowledgements and nacks, and its count of unsettled messages."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import _pulsar
import pulsar
from pulsar import Message

from pulsar_retry.consumer.nacks.awaited import State
from pulsar_retry.consumer.nacks.chunks import ChunkedId, with_chunks
from pulsar_retry.consumer.nacks.queue import NackQueue
from pulsar_retry.consumer.nacks.returns import COME_BACK, Returns, Rounds
from pulsar_retry.consumer.nacks.stall import StallWatch
from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.plan import Plan, topic_list
from pulsar_retry.observe.counting import Ledger
from pulsar_retry.observe.watch import Watch, topic_label
from pulsar_retry.policy.actions import last_delivery
from pulsar_retry.policy.durations import MAX_DELAY, Duration, seconds
from pulsar_retry.runtime.raw import id_of, raw_of
from pulsar_retry.runtime.timer import Timer
from pulsar_retry.wire.names import logical
from pulsar_retry.wire.properties import reconsume_times

#: At high rates, the approximate number of seconds between two checks of received messages.
_OFTEN = 0.001

#: At least one in this number of messages is checked.
_MOST_UNSEEN = 128


class SettlingConsumer(pulsar.Consumer):  # type: ignore[misc]  # pulsar-client is untyped
    """A `pulsar.Consumer` with counted acknowledgements and a delay for each nack."""

    _consumer: Any
    _schema: Any
    _watch: Watch
    _ledger: Ledger

    def _set_up(self, plan: Plan, timer: Timer) -> None:
        self._plan = plan
        self._timer = timer
        self._nacks = NackQueue(timer, redelivers_all=not plan.shared)
        self._returns = Returns()
        self._rounds = None if plan.shared else Rounds(self._nacks, timer)
        # Checked at each acknowledgement: without pending nacks, that costs nothing more.
        self._nacked = self._nacks.pending.entries
        # Counts of messages. Threads add to them without a lock, as they do to the ledger's counts.
        self._received = 0
        self._settled = 0
        self._stall = StallWatch(plan.max_unacked_messages, plan.subscription)
        # The topics that messages of a pattern came from: a message id does not include its topic.
        is_pattern = isinstance(plan.topic, re.Pattern)
        self._seen_topics: set[str] | None = set() if is_pattern else None
        #: Whether each received message is checked. If not, only some are checked at high rates.
        self._looks_at_each = is_pattern or bool(plan.ack_timeout)
        self._looked, self._step = float("-inf"), 1
        #: The count of received messages at which the next check is due.
        self._looks_at = 0
        #: Whether the application waits for a message, or got none when it last asked.
        self._is_asking = False
        this = weakref.ref(self)
        self._nacks.state = lambda: _state(this())
        self._nacks.asked_again = self._returns.asked_again

    def _queues(self) -> tuple[NackQueue, ...]:
        """Return the nack queues of all raw consumers that this consumer is made of."""
        return (self._nacks,)

    def _queue(self, *, letter: bool) -> NackQueue:  # noqa: ARG002 - for the consumer of two topics
        """Return the nack queue of the retry topic or of the main topic."""
        return self._nacks

    def _is_letter(self, message: Any) -> bool:  # noqa: ARG002 - for the consumer of two topics
        """Tell whether *message* came from the retry topic; it can be a message or an id."""
        return False

    # -- receiving ----------------------------------------------------------------------------

    def receive(self, timeout_millis: int | None = None) -> Any:
        """Return the next message, as `pulsar.Consumer.receive` does."""
        # Inlined for speed: this code runs for every message.
        self._is_asking = True
        if timeout_millis is None:
            raw = self._consumer.receive()
        elif isinstance(timeout_millis, int):
            raw = self._consumer.receive(timeout_millis)
        else:
            raise ConfigError.bad("timeout_millis", timeout_millis, "an int")
        self._received = count = self._received + 1
        if count >= self._looks_at:
            self._look((raw,))
        message = Message()
        message._message = raw  # noqa: SLF001 - as pulsar.Consumer.receive makes it
        message._schema = self._schema  # noqa: SLF001
        return message

    def batch_receive(self) -> list[Any]:
        """Return a batch of messages, as `pulsar.Consumer.batch_receive` does."""
        self._is_asking = True
        messages: list[Any] = super().batch_receive()
        self._took(messages)
        return messages

    def _took(self, messages: Sequence[Any]) -> None:
        """Count received messages, which may be raw or not."""
        self._received += len(messages)
        if self._received >= self._looks_at:
            self._look(messages)

    def _look(self, received: Sequence[Any]) -> None:
        """Check the broker's limit, and the messages that were *received*."""
        self._is_asking = False
        unsettled = self.unsettled
        self._stall.look(unsettled, self.pending_nacks)
        for each in received:
            self._look_at(raw_of(each))
        if self._looks_at_each:
            self._looks_at = 0
            return
        now = self._timer.now()
        if now - self._looked < _OFTEN:
            self._step = min(2 * self._step, _MOST_UNSEEN)
        elif now - self._looked > 10 * _OFTEN:
            self._step = 1
        self._looked = now
        self._looks_at = self._received + min(self._stall.next_look(unsettled), self._step)

    def _look_at(self, raw: Any) -> None:
        """Check whether a message is chunked, and whether a nack has requested it."""
        if self._seen_topics is not None:
            self._seen_topics.add(raw.topic_name())
        letter = self._is_letter(raw)
        queue, message_id = self._queue(letter=letter), self._wanted(raw, letter=letter)
        is_chunked = type(message_id) is ChunkedId
        if is_chunked:
            self._looks_at_each = True
        queue.come(message_id)
        # pulsar-client's time-out redelivers only the last chunk. A nack redelivers all chunks.
        if is_chunked and self._plan.ack_timeout and not queue.redelivers_all:
            queue.add(message_id, self._plan.ack_timeout)

    def _is_free(self) -> bool:
        """Tell whether every received message is settled."""
        return not self.unsettled

    # -- acknowledgements -----------------------------------------------------------------------

    def acknowledge(self, message: Any) -> None:
        """Acknowledge a message; its id is accepted too."""
        if isinstance(message, pulsar.Message):
            raw = message._message  # noqa: SLF001
            self._consumer.acknowledge(raw)
            message._settled = True  # noqa: SLF001 - see `LetterMaker`
        else:
            raw = raw_of(message)
            self._consumer.acknowledge(raw)
        self._settled += 1
        if self._nacked:
            self._take_back(raw)
        # Inlined for speed: this code runs for every message.
        ledger = self._ledger
        ledger.acknowledged = count = ledger.acknowledged + 1
        if count >= ledger.due:
            self._watch.acknowledged(raw)

    def acknowledge_cumulative(self, message: Any) -> None:
        """Acknowledge everything up to a message or its id. It counts as one acknowledgement.

        Raises:
            pulsar.CumulativeAcknowledgementNotAllowedError: on a Shared or Key_Shared subscription.
        """
        super().acknowledge_cumulative(message)
        self._take_back_up_to(message)
        self._counted(raw_of(message))

    @property
    def dropped_duplicates(self) -> int:
        """The number of duplicate letters that were acknowledged and not delivered."""
        return 0

    def _counted(self, raw: Any) -> None:
        """Count one acknowledgement, and report it if that is due."""
        ledger = self._ledger
        ledger.acknowledged = count = ledger.acknowledged + 1
        if count >= ledger.due:
            self._watch.acknowledged(raw)

    def _settle_as(self, message: Any, outcome: str) -> None:
        """Acknowledge a message that was not handled successfully, and count it as *outcome*."""
        self._acknowledge_raw(message)
        self._watch.settled(raw_of(message), outcome)

    def _acknowledge_raw(self, message: Any) -> None:
        """Acknowledge a message without counting it."""
        self._consumer.acknowledge(raw_of(message))
        self._settled += 1
        if self._nacked:
            self._take_back(message)

    # -- what the broker counts ---------------------------------------------------------------

    @property
    def pending_nacks(self) -> int:
        """How many nacked messages wait for their delay. To the broker they are unacknowledged."""
        return sum(len(queue.pending) for queue in self._queues())

    @property
    def unsettled(self) -> int:
        """About how many messages were received, and are neither settled nor redelivered.

        Pending nacks are included. The broker counts these messages as unacknowledged, and also
        those that pulsar-client has fetched ahead (``receiver_queue_size`` at most). It delivers
        nothing at its limits ``maxUnackedMessagesPerConsumer`` and
        ``maxUnackedMessagesPerSubscription``.

        The number is meant for Shared and Key_Shared. Other types have no limit, and a cumulative
        acknowledgement counts for all messages received before it. Messages that are redelivered
        after an acknowledgement time-out are still included, because the consumer is not notified.
        """
        redelivered = sum(queue.redelivered for queue in self._queues())
        return max(0, self._received - self._settled - redelivered)

    def _all_settled(self) -> None:
        """Record that the broker redelivers everything that is not acknowledged."""
        self._settled = self._received - sum(queue.redelivered for queue in self._queues())

    # -- nacks --------------------------------------------------------------------------------

    def negative_acknowledge(self, message: Any, *, delay: Duration | None = None) -> None:
        """Have *message* redelivered later.

        Settling the message before that cancels the nack. The broker can only redeliver a whole
        batch, so the nack applies to all unacknowledged messages of the batch. If the message, or
        another one of its batch, is nacked again, the earlier due time counts.

        With a dead-letter policy on a Shared or Key_Shared subscription, the nack of the last
        delivery (redelivery count N) sends the message to the dead-letter topic instead.
        Redeliveries that the consumer requests because a letter was not published do not count.

        Args:
            message: A message. A message id works too, but has no redelivery count: the backoff
                starts at its first delay, and dead-lettering takes one redelivery more.
            delay: Seconds or a timedelta. 0 means now, which takes about 0.15 s. None: the delay of
                ``negative_ack_backoff``, or else ``negative_ack_redelivery_delay_ms``.

        Raises:
            ConfigError: *delay* is invalid.
        """
        wait = None if delay is None else seconds("delay", delay, maximum=MAX_DELAY)
        raw = raw_of(message)
        counted, limit = isinstance(raw, _pulsar.Message), self._plan.limit
        count = self._returns.attempts_before(raw) if counted else 0
        is_last = counted and limit is not None and last_delivery(count, limit)
        if is_last and self._dead_letter_redelivered(raw):
            return
        letter = self._is_letter(raw)
        if wait is None:
            if letter and counted:
                count += _retries(raw)
            wait = self._plan.nack_backoff.delay(count + 1)
        message_id = id_of(raw)
        if not isinstance(message_id, _pulsar.MessageId):
            raise TypeError(f"expected a message or a message id, not {message!r}")
        queue, wanted = self._queue(letter=letter), self._to_nack(raw, letter=letter)
        if self._plan.ack_timeout and type(wanted) is ChunkedId:
            queue.cancel(wanted)  # it may be waiting for its acknowledgement time-out
        queue.add(wanted, wait)
        self._watch.nacked(raw, wait)

    def _not_handed_on(self, raw: Any, letter: bool) -> None:
        """Have a message redelivered whose letter has failed."""
        self._settled -= 1
        self._come_back(raw, letter)

    def _come_back(self, raw: Any, letter: bool) -> None:
        """Have a message redelivered that could not be handed on."""
        failures = self._returns.failed(raw)
        message_id = self._to_nack(raw, letter=letter)
        if letter or self._rounds is None:
            self._queue(letter=letter).add(message_id, COME_BACK.delay(failures))
        else:
            self._rounds.add(message_id, failures)

    def _to_nack(self, raw: Any, *, letter: bool) -> Any:
        """Return the id of *raw*, a message or an id, in the form of the nack queue."""
        wanted = self._wanted(raw, letter=letter)
        if type(wanted) is ChunkedId or not self._plan.shared:
            self._looks_at_each = True
            self._looks_at = 0
        return wanted

    def _wanted(self, raw: Any, *, letter: bool) -> Any:
        message_id = id_of(raw)

        def topics() -> Iterable[str]:
            if raw is not message_id:
                return (raw.topic_name(),)
            return self._may_be_from(message_id.partition(), letter=letter)

        return with_chunks(message_id, topics)

    def _may_be_from(self, partition: int, *, letter: bool) -> Iterable[str]:  # noqa: ARG002
        """Return the full names of the topics, or partitions, that an id can belong to."""
        suffix = f"-partition-{partition}" if partition >= 0 else ""
        if self._seen_topics is not None:
            return [each for each in tuple(self._seen_topics) if each.endswith(suffix)]
        return [f"{topic_label(logical(each))}{suffix}" for each in topic_list(self._plan.topic)]

    def _dead_letter_redelivered(self, raw: Any) -> bool:
        """Dead-letter a message whose redeliveries are used up; tell whether that is possible."""
        raise NotImplementedError

    def _close_nacks(self) -> None:
        """Drop pending nacks: the broker redelivers these messages at once."""
        for queue in self._queues():
            queue.close()

    # -- what takes a nack back ---------------------------------------------------------------

    def _take_back(self, message: Any) -> None:
        """Cancel the nack of a message that is settled.

        A nack that is due within a tenth of a second may already be on its way.
        """
        self._queue(letter=self._is_letter(message)).cancel(id_of(message))

    def _take_back_up_to(self, message: Any) -> None:
        """Cancel the nacks of all messages up to *message*, which is from the main topic."""
        self._all_settled()
        if self._nacked:
            is_one = isinstance(self._plan.topic, str)
            self._nacks.cancel_up_to(id_of(message), one_topic=is_one)

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all unacknowledged messages redelivered now, including nacked ones."""
        for queue in self._queues():
            queue.clear()
        super().redeliver_unacknowledged_messages()
        self._all_settled()

    def seek(self, messageid: Any) -> None:
        """Move the subscription to a message id or a time (milliseconds since 1970).

        Pending nacks are dropped, because the broker delivers everything from there on.
        """
        super().seek(messageid)
        self._nacks.clear()
        self._all_settled()


class NackGauges:
    """A consumer's gauges for the metrics. They end with the consumer."""

    def __init__(self, consumer: SettlingConsumer) -> None:
        self._consumer = weakref.ref(consumer)

    def gauges(self) -> Mapping[str, float]:
        """Return the current values for the metrics."""
        consumer = self._consumer()
        if consumer is None:
            return {}
        pending, unsettled = consumer.pending_nacks, consumer.unsettled
        return {"nacks_pending": float(pending), "unsettled": float(unsettled)}


def _retries(raw: Any) -> int:
    """Return how often a message was reconsumed; 0 if pulsar-client cannot read the properties."""
    try:
        return reconsume_times(raw.properties())
    except UnicodeDecodeError:
        return 0


def _state(consumer: SettlingConsumer | None) -> State:
    """Return what the application is doing with *consumer*, if the consumer still exists."""
    if consumer is None:
        return State()
    return State(consumer._is_asking, consumer._is_free())  # noqa: SLF001 - as one of its methods

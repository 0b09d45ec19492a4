"""Watches a consumer: describes and counts what happens, and notifies each instrument of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import attrs

from pulsar_retry.errors import AcknowledgeError, LetterPublishError, shown
from pulsar_retry.letters.letter import Letter
from pulsar_retry.observe.counting import OTHER, Counters
from pulsar_retry.policy.outcomes import RETRIES_EXHAUSTED
from pulsar_retry.wire.names import logical
from pulsar_retry.wire.owner import Recipient
from pulsar_retry.wire.properties import REAL_TOPIC, message_id_text, reconsume_times

#: The outcomes of deliveries, beside `ACKNOWLEDGED`.
RETRIED, DEAD_LETTERED = "retried", "dead_lettered"
NACKED, DROPPED, SUPERSEDED, STRAY = "nacked", "dropped", "superseded", "stray"
DEFERRED = "deferred"

#: How messages are retried: by a letter, by the broker, or in their lane.
RetryKind = Literal["letter", "nack", "lane"]

#: The attribute of a message that has a span: a function of the message and its letter, which
#: returns the letter with what the letter's span needs.
TRACE = "_pulsar_retry_trace"


class HandOver(Protocol):
    """A message and the letter that replaces it."""

    @property
    def raw(self) -> Any:
        """The raw message."""

    @property
    def letter(self) -> Letter:
        """The letter."""


class Instrument:
    """Is notified of what happens to the messages of one consumer. Here, each method does nothing.

    Any thread calls the methods, after the event. They must neither block nor raise.
    """

    def retried(
        self,
        raw: Any,
        kind: RetryKind,
        delay: float,
        *,
        error: BaseException | None = None,
        attempt: int | None = None,
        counted: bool = True,
    ) -> None:
        """Handle a retry without a letter: a nack of a raw message or an id, or one in a lane.

        It is not *counted* if the message was only deferred, without a failed attempt.
        """

    def handed_on(self, done: Sequence[HandOver]) -> None:
        """Handle messages whose letters are published, and which are acknowledged."""

    def failed(self, hand_over: HandOver, error: BaseException) -> None:
        """Handle a message that could not be handed on."""


@attrs.frozen(kw_only=True)
class SettleEvent:
    """What has happened to a message. It contains no payload and no properties.

    Attributes:
        topic: The full name of the topic that the message was first published to, without its
            partition. If only an id was given to a consumer of several topics, all its topics.
        subscription: The subscription.
        message_id: The id of the delivered message, ``ledger:entry:partition[:batch]``.
        attempt: The number of the attempt, counted from 1.
        kind: How the message is retried: by a ``letter``, a ``nack``, or in its ``lane``. None: the
            event is not a retry.
        delay: Seconds until the retry; None if the event is not a retry.
        reason: Why the message is dead; None for other events.
        error: The exception of the handler, or, in `on_settle_failed`, of the settlement. None if
            there is none, or it is not known.
        letter_topic: The topic of its letter; None if there is no letter.
    """

    topic: str
    subscription: str
    message_id: str
    attempt: int
    kind: RetryKind | None = None
    delay: float | None = None
    reason: str | None = None
    error: BaseException | None = None
    letter_topic: str | None = None


class Events:
    """Describes the messages of one consumer, for hooks and for the log. Thread-safe.

    Attributes:
        topic: The topic or topics of the consumer, as metrics name them.
        subscription: The subscription.
    """

    def __init__(self, topic: str, subscription: str, recipient: Recipient) -> None:
        self.topic = topic
        self.subscription = subscription
        self._recipient = recipient

    def of(self, raw: Any, *, attempt: int | None = None, **known: Any) -> SettleEvent:
        """Return the event for a message, or for the id of a message.

        Args:
            raw: The message, pulsar-client's raw one, or its id.
            attempt: The number of the attempt; None: it is read from the message.
            known: Other values of the event.
        """
        topic, message_id = self.topic, raw
        if _is_whole(raw):
            topic = str(self._own(raw).get(REAL_TOPIC) or logical(raw.topic_name()))
            message_id = raw.message_id()
        return SettleEvent(
            topic=topic,
            subscription=self.subscription,
            message_id=message_id_text(message_id),
            attempt=self.attempt(raw) if attempt is None else attempt,
            **known,
        )

    def attempt(self, raw: Any) -> int:
        """Return the number of a message's attempt; 1 for an id."""
        if not _is_whole(raw):
            return 1
        return int(1 + reconsume_times(self._own(raw)) + raw.redelivery_count())

    def log_values(self, raw: Any, **known: Any) -> dict[str, Any]:
        """Return the extra values of a log record about a message. Never raises."""
        values = {"topic": self.topic, "subscription": self.subscription}
        try:
            event = self.of(raw, **known)
        except Exception as error:  # noqa: BLE001 - the record itself is what matters
            return {**values, "message_id": None, "attempt": None, "reason": shown(error)}
        more = {name: getattr(event, name) for name in ("message_id", "attempt", "reason")}
        return {**values, "topic": event.topic, **more}

    def _own(self, raw: Any) -> Mapping[str, str]:
        """Return the properties of a raw message that are its own; none if they are not text."""
        with contextlib.suppress(UnicodeDecodeError):  # then it is no letter of this package
            return self._recipient.own(raw.properties(), raw.topic_name())
        return {}


def _is_whole(raw: Any) -> bool:
    """Tell whether it is a message and not an id."""
    return hasattr(raw, "redelivery_count")


class Watch(Instrument):
    """Counts what happens to the messages of one consumer, and notifies the other instruments.

    Thread-safe. Instruments that are not used are not there. Acknowledgements are so frequent that
    `Consumer.acknowledge` usually only adds one to `Counters.acknowledged`.

    Attributes:
        counters: The counters of its subscription.
        events: Describes messages for the log.
    """

    def __init__(
        self, counters: Counters, events: Events, instruments: Iterable[Instrument]
    ) -> None:
        self.counters = counters
        self.events = events
        self._count = counters.count
        self._instruments = tuple(instruments)

    def add(self, instrument: Instrument) -> None:
        """Notify *instrument* too."""
        self._instruments += (instrument,)

    def settled(self, outcome: str) -> None:
        """Count an acknowledgement without a letter.

        *outcome* is `ACKNOWLEDGED`, or says why the message was not handled: `DROPPED`,
        `SUPERSEDED` or `STRAY`.
        """
        self._count("deliveries", outcome)

    def retried(
        self, raw: Any, kind: RetryKind, delay: float, *, counted: bool = True, **known: Any
    ) -> None:
        """Count a retry in a lane or by a nack, which ends a delivery, or a message deferred."""
        if counted:
            self._count("retries", kind)
            self._count("deliveries", NACKED if kind == "nack" else RETRIED)
        else:
            self._count("deliveries", DEFERRED)
        for each in self._instruments:
            each.retried(raw, kind, delay, counted=counted, **known)

    def handed_on(self, done: Sequence[HandOver]) -> None:
        """Count retry letters and dead letters."""
        retried = deferred = dead = 0
        for each in done:
            if each.letter.dead:
                dead += 1
                self._count("dead_letters", each.letter.reason or RETRIES_EXHAUSTED)
            elif each.letter.counted:
                retried += 1
            else:
                deferred += 1
        if retried:
            self._count("retries", "letter", retried)
        for outcome, times in ((RETRIED, retried), (DEFERRED, deferred), (DEAD_LETTERED, dead)):
            if times:
                self._count("deliveries", outcome, times)
        for each in done:
            if (end_span := each.letter.trace) is not None:
                end_span(each)
        for instrument in self._instruments:
            instrument.handed_on(done)

    def failed(self, hand_over: HandOver, error: BaseException) -> None:
        """Count a message that could not be handed on."""
        known = isinstance(error, LetterPublishError | AcknowledgeError)
        self._count("settle_failures", type(error).__name__ if known else OTHER)
        if (end_span := hand_over.letter.trace) is not None:
            end_span(hand_over, error)
        for each in self._instruments:
            each.failed(hand_over, error)

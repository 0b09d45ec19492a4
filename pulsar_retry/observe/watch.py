"""Reports what one consumer does: to the counters, to hooks, and to the log."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from pulsar_retry.errors import AcknowledgeError, ConfigError, LetterPublishError, shown
from pulsar_retry.observe import counting
from pulsar_retry.observe.counting import BOOK, Counters
from pulsar_retry.observe.hooks import NONE, Hooks, SettleEvent
from pulsar_retry.policy.actions import RETRIES_EXHAUSTED
from pulsar_retry.wire.envelope import read_published
from pulsar_retry.wire.names import TopicName, logical
from pulsar_retry.wire.owner import Recipient
from pulsar_retry.wire.properties import (
    REAL_TOPIC,
    RECONSUMETIMES,
    message_id_text,
    reconsume_times,
)

_log = logging.getLogger("pulsar_retry")

#: The maximum number of topics in the label of one consumer.
_MOST_TOPICS = 3
#: The maximum number of error types that are logged for the hooks of one consumer.
_MOST_ERRORS = 20


class HandOffSpan(Protocol):
    """The span of a hand-off."""

    def end(self, error: BaseException | None = None) -> None:
        """End it."""


class LetterFacts(Protocol):
    """The parts of a letter that are reported."""

    @property
    def topic(self) -> str:
        """The topic of the letter."""

    @property
    def dead(self) -> bool:
        """Whether it is a dead letter."""

    @property
    def delay(self) -> float:
        """Seconds until the letter is delivered."""

    @property
    def reason(self) -> str | None:
        """Why the message is dead."""

    @property
    def attempt(self) -> int | None:
        """The number of the failed attempt; None if it was not counted."""

    @property
    def error(self) -> BaseException | None:
        """The exception that was raised."""

    @property
    def span(self) -> HandOffSpan | None:
        """The span of the hand-off."""


def topic_label(topic: Any) -> str:
    """Return the text for a consumer's topic, topics or pattern in metrics."""
    if isinstance(topic, str):
        try:
            return str(TopicName.parse(logical(topic)))
        except ConfigError:
            return topic  # the broker decides about it
    if isinstance(topic, Sequence):
        names = sorted(topic_label(each) for each in topic)
        more = len(names) - _MOST_TOPICS
        return ",".join(names[:_MOST_TOPICS]) + (f" and {more} more" if more > 0 else "")
    return str(getattr(topic, "pattern", topic))


class Watch:
    """Reports what one consumer does. Thread-safe.

    Attributes:
        counters: The counters of its subscription.
    """

    def __init__(
        self,
        counters: Counters,
        hooks: Hooks | None = None,
        now: Callable[[], float] = time.time,
        recipient: Recipient | None = None,
    ) -> None:
        self.counters = counters
        topics = (counters.topic,)
        self._recipient = recipient or Recipient.of(topics, counters.subscription, None)
        self._hooks = hooks or NONE
        self._now = now
        self._logged: set[tuple[str, type]] = set()
        self._samples_all = self._hooks.on_recovered is not None
        if self._samples_all:
            counters.sample_all()

    @classmethod
    def of(
        cls,
        topic: Any,
        subscription: str,
        hooks: Hooks | None = None,
        now: Callable[[], float] = time.time,
        recipient: Recipient | None = None,
    ) -> Watch:
        """Return the watch for a consumer of *topic*, which can be a list or a pattern too."""
        counters = BOOK.counters(topic_label(topic), str(subscription))
        return cls(counters, hooks, now, recipient)

    # -- what happens to messages -----------------------------------------------------------------

    def acknowledged(self, raw: Any, *, letter: bool = False) -> None:
        """Sample an acknowledgement that was counted already; an id has neither attempt nor age."""
        now, events = self._now(), self.counters.letters if letter else self.counters.messages
        if not _is_whole(raw):
            self.counters.sample(events, now, None, 0.0)
            return
        attempt, age = self._attempt_and_age(raw, now)
        self.counters.sample(events, now, attempt, age)
        self._recovered(raw, attempt)

    def _recovered(self, raw: Any, attempt: int) -> None:
        if self._samples_all and attempt > 1:
            self._call("on_recovered", raw, attempt=attempt)

    def settled(self, raw: Any, outcome: str) -> None:
        """Count a message that was acknowledged although it was not handled successfully."""
        self.counters.count("deliveries", outcome)
        if outcome not in (counting.SUPERSEDED, counting.STRAY):  # another letter continues
            self._done(raw)

    def nacked(self, raw: Any, delay: float) -> None:
        """Count a nack of a message or of its id."""
        counters = self.counters
        with counters.lock:
            counters.tally("deliveries").add(counting.NACKED)
            counters.tally("retries").add(counting.NACK)
        if self._hooks.on_retry is not None:
            self._call("on_retry", raw, kind=counting.NACK, delay=delay)

    def retried(
        self,
        raw: Any,
        kind: Literal["letter", "nack", "lane"],
        delay: float,
        **facts: Any,
    ) -> None:
        """Count a message that is retried."""
        self.counters.count("retries", kind)
        if self._hooks.on_retry is not None:
            self._call("on_retry", raw, kind=kind, delay=delay, **facts)

    def handed_on(self, handed: Sequence[tuple[Any, LetterFacts]]) -> None:
        """Count messages whose letters are published, and which are acknowledged."""
        dead = [each for each in handed if each[1].dead]
        if count := len(handed) - len(dead):
            self.counters.count("deliveries", counting.RETRIED, count)
            self.counters.count("retries", counting.LETTER, count)
        if dead:
            self.counters.count("deliveries", counting.DEAD_LETTERED, len(dead))
            reasons = Counter(letter.reason or RETRIES_EXHAUSTED for _, letter in dead)
            for reason, times in reasons.items():
                self.counters.count("dead_letters", reason, times)
            now = self._now()
            self.counters.all_done([self._end_of(raw, letter, now) for raw, letter in dead])
        for raw, letter in handed:
            if letter.span is not None:
                letter.span.end()
            if self._hooks.on_dead_letter is not None and letter.dead:
                reason = letter.reason or RETRIES_EXHAUSTED
                self._call_of("on_dead_letter", raw, letter, reason=reason)
            elif self._hooks.on_retry is not None and not letter.dead:
                self._call_of("on_retry", raw, letter, kind=counting.LETTER, delay=letter.delay)

    def _call_of(self, name: str, raw: Any, letter: LetterFacts, **facts: Any) -> None:
        """Call a hook about a message with a letter."""
        self._call(
            name,
            raw,
            attempt=letter.attempt,
            error=letter.error,
            letter_topic=letter.topic,
            **facts,
        )

    def _end_of(self, raw: Any, letter: LetterFacts, now: float) -> tuple[int, float]:
        """Return the number of a message's last attempt, and its age."""
        seen, age = self._attempt_and_age(raw, now)
        return letter.attempt or seen, age

    def failed(self, raw: Any, letter: LetterFacts, error: BaseException) -> None:
        """Count a message that could not be handed on."""
        if letter.span is not None:
            letter.span.end(error)
        known = isinstance(error, LetterPublishError | AcknowledgeError)
        self.counters.count("settle_failures", type(error).__name__ if known else counting.OTHER)
        if self._hooks.on_settle_failed is not None:
            self._call(
                "on_settle_failed",
                raw,
                attempt=letter.attempt,
                reason=letter.reason,
                error=error,
                letter_topic=letter.topic,
            )

    # -- reporting --------------------------------------------------------------------------------

    def event(self, raw: Any, *, attempt: int | None = None, **facts: Any) -> SettleEvent:
        """Return the event for a message, or for the id of a message.

        Args:
            raw: The message, pulsar-client's raw one, or its id.
            attempt: The number of the attempt; None: it is read from the message.
            facts: Other values of the event.
        """
        topic, message_id = self.counters.topic, raw
        if is_whole := _is_whole(raw):
            topic, message_id = self._topic(raw), raw.message_id()
        if attempt is None:
            attempt = self._attempt_and_age(raw, 0.0)[0] if is_whole else 1
        return SettleEvent(
            topic=topic,
            subscription=self.counters.subscription,
            message_id=message_id_text(message_id),
            attempt=attempt,
            **facts,
        )

    def facts(self, raw: Any, **facts: Any) -> dict[str, Any]:
        """Return the extra values of a log record about a message. Never raises."""
        try:
            return self.event(raw, **facts).facts()
        except Exception as error:  # noqa: BLE001 - the record itself is what matters
            fallback = {"message_id": None, "attempt": None, "reason": shown(error)}
            return {
                "topic": self.counters.topic,
                "subscription": self.counters.subscription,
                **fallback,
            }

    def _call(self, name: str, raw: Any, **facts: Any) -> None:
        """Call a hook."""
        try:
            getattr(self._hooks, name)(self.event(raw, **facts))
        except KeyboardInterrupt:
            raise  # the hook has not caused it
        except BaseException as error:  # noqa: BLE001 - a hook must not disturb the consumer
            key = (name, type(error))
            if key not in self._logged and len(self._logged) < _MOST_ERRORS:
                self._logged.add(key)
                text = "the hook %s raised an exception; others of this type are not logged"
                _log.exception(text, name, extra=self.facts(raw))

    def _done(self, raw: Any) -> None:
        self.counters.all_done([self._attempt_and_age(raw, self._now())])

    def _topic(self, raw: Any) -> str:
        """Return the topic that a message, or the origin of a letter, was published to."""
        return str(self._own(raw).get(REAL_TOPIC) or logical(raw.topic_name()))

    def _attempt_and_age(self, raw: Any, now: float) -> tuple[int, float]:
        """Return the number of a message's attempt, and the seconds since its publication."""
        properties, attempt = self._own(raw), 1 + raw.redelivery_count()
        if RECONSUMETIMES in properties:
            attempt += reconsume_times(properties)
            if (first := read_published(properties)) is not None:
                return attempt, now - first.timestamp()
        return attempt, now - raw.publish_timestamp() / 1000

    def _own(self, raw: Any) -> Mapping[str, str]:
        """Return the properties of a raw message that are its own; none if they are not text."""
        with contextlib.suppress(UnicodeDecodeError):  # then it is no letter of this package
            return self._recipient.own(raw.properties(), raw.topic_name())
        return {}


def _is_whole(raw: Any) -> bool:
    """Tell whether it is a message and not an id."""
    return hasattr(raw, "redelivery_count")

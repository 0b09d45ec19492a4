"""The letters that a consumer has received from its retry topic."""

from __future__ import annotations

import logging
import threading
from typing import Any

import _pulsar
from pulsar import Message

from pulsar_retry.consumer.duplicates import Deduper, LetterId
from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.identity import is_published_here
from pulsar_retry.letters.plan import Plan
from pulsar_retry.observe.instruments import STRAY, SUPERSEDED
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.runtime.raw import id_of, position_of, raw_of
from pulsar_retry.wire.names import logical
from pulsar_retry.wire.owner import Stray

_log = logging.getLogger("pulsar_retry")

#: How many ledgers of the main topic are remembered. A topic has a new one every few hours.
_MOST = 1000


class LetterLedgers:
    """Distinguishes letters from messages of the main topic. Thread-safe.

    An id does not include its topic, but no two topics of a cluster share a ledger. The ledgers of
    the letters that were received here are known, and most of those of the topic's messages.

    Attributes:
        topics: The retry topic and those of its partitions that were seen.
        knows_all: Whether each message that was received has been recorded.
    """

    def __init__(self, topic: str) -> None:
        """Start with the retry *topic* of a subscription."""
        self.topics = {topic}
        self.knows_all = True
        self._topic = topic
        self._ledgers: set[int] = set()
        self._others: set[int] = set()

    def came(self, raw: Any) -> None:
        """Record a raw letter that was received."""
        ledger = raw.message_id().ledger_id()
        if ledger not in self._ledgers:
            self.topics.add(raw.topic_name())
            self._ledgers.add(ledger)

    def saw_other(self, ledger: int) -> None:
        """Record the ledger of a message of the main topic."""
        if ledger not in self._others:
            if len(self._others) >= _MOST:
                self._others.clear()
                self.knows_all = False
            self._others.add(ledger)

    @property
    def is_empty(self) -> bool:
        """Whether no letter has been received here."""
        return not self._ledgers

    def is_from(self, topic: str) -> bool:
        """Tell whether *topic* is the retry topic, or a partition of it."""
        return topic in self.topics or logical(topic) in self.topics

    def holds(self, message_id: Any) -> bool:
        """Tell whether a raw message id is a letter's.

        Raises:
            ConfigError: no message of its ledger was received here, so it may be either.
        """
        ledger = message_id.ledger_id()
        if ledger in self._ledgers:
            return True
        if ledger not in self._others and self.knows_all:
            raise ConfigError(
                f"the message id {message_id} may belong to the topic or to {self._topic}, because "
                "this consumer has received no message of its ledger: pass the message, or use a "
                "consumer of the right topic without enable_retry"
            )
        return False

    def located(self, message_id: Any) -> Any:
        """Return a letter's raw id, with the name of its partition if it has one.

        A stored id has no such name, but a consumer of partitions needs it.
        """
        if message_id.partition() >= 0:
            message_id.topic_name(f"{self._topic}-partition-{message_id.partition()}")
        return message_id


class DeliveredLetters:
    """Remembers unacknowledged letters in the order of their delivery. Thread-safe.

    The retry topic is always Shared, so the broker has no cumulative acknowledgement for it. For an
    Exclusive or Failover consumer, "up to this letter" means the letters delivered before it.
    """

    def __init__(self) -> None:
        self._ids: dict[tuple[int, int, int, int], Any] = {}
        self._lock = threading.Lock()

    def add(self, message_id: Any) -> None:
        """Record a delivery; a redelivered letter moves to the end."""
        key = position_of(message_id)
        with self._lock:
            self._ids.pop(key, None)
            self._ids[key] = message_id

    def remove(self, message_id: Any) -> None:
        """Forget a settled letter."""
        with self._lock:
            self._ids.pop(position_of(message_id), None)

    def clear(self) -> None:
        """Forget all letters, because they will be delivered again."""
        with self._lock:
            self._ids.clear()

    def up_to(self, message_id: Any) -> list[Any]:
        """Return the ids up to and including this one; only this id if it is unknown."""
        last = position_of(message_id)
        with self._lock:
            if last not in self._ids:
                return [message_id]
            keys = list(self._ids)
            return [self._ids[key] for key in keys[: keys.index(last) + 1]]


class ReceivedLetters:
    """Which messages are letters, which of them are in hand, and which are duplicates. Thread-safe.

    It has to be notified of each letter, by `came`, before the letter is delivered.

    Attributes:
        ledgers: Distinguishes letters from messages of the main topic.
    """

    def __init__(self, plan: Plan, clock: Clock) -> None:
        """Start with the plan of a subscription with retries."""
        assert plan.topics is not None  # noqa: S101 - this plan has retries
        self.ledgers = LetterLedgers(plan.topics.retry)
        self._in_hand = None if plan.shared else DeliveredLetters()
        self._deduper = Deduper(plan, clock) if plan.dedupe_letters else None
        self._recipient = plan.recipient
        self._has_warned = False

    @property
    def topics(self) -> tuple[str, ...]:
        """The retry topic and those of its partitions that were seen."""
        return tuple(self.ledgers.topics)

    @property
    def dropped(self) -> int:
        """How many letters were duplicates."""
        return 0 if self._deduper is None else self._deduper.dropped

    # -- receiving ------------------------------------------------------------------------------

    def came(self, raw: Any) -> None:
        """Record a raw letter, so that its acknowledgement or nack goes to the retry topic."""
        self.ledgers.came(raw)
        if self._in_hand is not None:
            self._in_hand.add(raw.message_id())

    def needless(self, raw: Any) -> str | None:
        """Return why a received message must not be handled: an outcome; None if it must.

        It is a letter of another subscription, or the second letter of one delivery.
        """
        if self.ledgers.is_empty or not self.includes(raw):
            return None
        try:
            properties = raw.properties()
        except UnicodeDecodeError:
            return None
        stray = self._recipient.stray(properties, is_ours=is_published_here(raw))
        if stray is Stray.DROPPED:
            return STRAY
        if stray is Stray.DELIVERED and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s has letters of other topics or subscriptions, which %s gets too: give each "
                "subscription of a topic its own retry topic",
                raw.topic_name(),
                self._recipient.subscription,
            )
        if self._deduper is not None:
            letter = position_of(raw.message_id())
            if self._deduper.delivered(raw, letter, properties):
                return SUPERSEDED
        return None

    def includes(self, message: Any) -> bool:
        """Tell whether *message*, or the message of an id, is a letter.

        Raises:
            ConfigError: that cannot be told of the id.
        """
        if isinstance(message, Message):
            known = getattr(message, "is_letter", None)
            return self.ledgers.is_from(message.topic_name()) if known is None else known
        if isinstance(message, _pulsar.Message):
            return self.ledgers.is_from(message.topic_name())
        raw = raw_of(message)
        return isinstance(raw, _pulsar.MessageId) and self.ledgers.holds(raw)

    # -- settling -------------------------------------------------------------------------------

    def located(self, message: Any) -> Any:
        """Return what pulsar-client needs to acknowledge a letter, or the letter of an id."""
        raw = raw_of(message)
        return self.ledgers.located(raw) if isinstance(raw, _pulsar.MessageId) else raw

    def acknowledged(self, message: Any) -> None:
        """Record a letter that was acknowledged."""
        if self._in_hand is not None:
            self._in_hand.remove(id_of(message))
        self.settled(position_of(id_of(message)))

    def settled(self, letter: LetterId) -> None:
        """Record a letter that was acknowledged or handed on, by its position."""
        if self._deduper is not None:
            self._deduper.settled(letter)

    def passed_over(self, message: Any) -> None:
        """Record a letter that is acknowledged, unhandled, because there is a newer one."""
        if self._deduper is not None:
            self._deduper.passed_over(position_of(id_of(message)))

    def comes_again(self, message_id: Any) -> None:
        """Record that a letter is no longer in hand; it is redelivered or handed on."""
        if self._in_hand is not None:
            self._in_hand.remove(message_id)

    def all_come_again(self) -> None:
        """Record that no letter is in hand any more."""
        if self._in_hand is not None:
            self._in_hand.clear()

    @property
    def have_order(self) -> bool:
        """Whether letters can be acknowledged up to one of them: not on a Shared subscription."""
        return self._in_hand is not None

    def up_to(self, message: Any) -> list[Any]:
        """Return the ids of letters that were delivered up to *message*, if they have an order."""
        return [] if self._in_hand is None else self._in_hand.up_to(id_of(message))

    def moved(self) -> None:
        """Forget which letters were handled: the subscription was moved."""
        if self._deduper is not None:
            self._deduper.clear()

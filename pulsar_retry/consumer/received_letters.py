"""The letters that a consumer has received from its retry topic."""

from __future__ import annotations

import logging
import threading
from typing import Any

import _pulsar
from pulsar import Message

from pulsar_retry.consumer.duplicates import LetterId, LetterWindow
from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.identity import is_published_here
from pulsar_retry.letters.plan import Plan
from pulsar_retry.observe.watch import STRAY, SUPERSEDED
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.runtime.upstream import id_of, position_of, raw_of
from pulsar_retry.wire.names import logical
from pulsar_retry.wire.owner import Stray

_log = logging.getLogger("pulsar_retry")

#: How many ledgers of the main topic are remembered. A topic has a new one every few hours.
_MOST = 1000


class ReceivedLetters:
    """Which messages are letters, which of them are in hand, and which are duplicates. Thread-safe.

    It has to be notified of each letter, by `came`, before the letter is delivered.

    An id does not include its topic, but no two topics of a cluster share a ledger. The ledgers of
    the letters that were received here are known, and most of those of the topic's messages.

    The retry topic is always Shared, so the broker has no cumulative acknowledgement for it. For an
    Exclusive or Failover consumer, "up to this letter" means the letters delivered before it. So
    these are remembered in the order of their delivery.

    Attributes:
        window: Recognizes duplicates.
        knows_all: Whether each message that was received has been recorded.
    """

    def __init__(self, plan: Plan, clock: Clock) -> None:
        """Start with the plan of a subscription with retries."""
        assert plan.topics is not None  # noqa: S101 - this plan has retries
        self.window = LetterWindow(clock=clock.time, steady=clock.monotonic)
        self.knows_all = True
        self._topic = plan.topics.retry
        self._topics = {self._topic}  # with those partitions that were seen
        self._ledgers: set[int] = set()
        self._others: set[int] = set()
        self._in_order: dict[LetterId, Any] | None = None if plan.shared else {}
        self._lock = threading.Lock()
        self._recipient = plan.recipient
        self._has_warned = False

    # -- receiving ------------------------------------------------------------------------------

    def came(self, raw: Any) -> None:
        """Record a raw letter, so that its acknowledgement or nack goes to the retry topic."""
        message_id = raw.message_id()
        if message_id.ledger_id() not in self._ledgers:
            self._topics.add(raw.topic_name())
            self._ledgers.add(message_id.ledger_id())
        if self._in_order is not None:
            place = position_of(message_id)
            with self._lock:
                self._in_order.pop(place, None)  # a redelivered letter moves to the end
                self._in_order[place] = message_id

    def saw_other(self, ledger: int) -> None:
        """Record the ledger of a message of the main topic."""
        if ledger not in self._others:
            if len(self._others) >= _MOST:
                self._others.clear()
                self.knows_all = False
            self._others.add(ledger)

    def needless(self, raw: Any) -> str | None:
        """Return why a received message must not be handled: an outcome; None if it must.

        It is a letter of another subscription, or the second letter of one delivery.
        """
        if not self._ledgers or not self.includes(raw):
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
        is_second = self.window.came(raw, position_of(raw.message_id()), properties)
        return SUPERSEDED if is_second else None

    def includes(self, message: Any) -> bool:
        """Tell whether *message*, or the message of an id, is a letter.

        Raises:
            ConfigError: that cannot be told of the id.
        """
        if isinstance(message, Message | _pulsar.Message):
            if (known := getattr(message, "is_letter", None)) is not None:
                return bool(known)
            topic = message.topic_name()
            return topic in self._topics or logical(topic) in self._topics
        raw = raw_of(message)
        return isinstance(raw, _pulsar.MessageId) and self._holds(raw)

    def _holds(self, message_id: Any) -> bool:
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

    # -- settling -------------------------------------------------------------------------------

    def located(self, message: Any) -> Any:
        """Return what pulsar-client needs to acknowledge a letter, or the letter of an id.

        A stored id does not have the name of its partition, but a consumer of partitions needs it.
        """
        raw = raw_of(message)
        if isinstance(raw, _pulsar.MessageId) and raw.partition() >= 0:
            raw.topic_name(f"{self._topic}-partition-{raw.partition()}")
        return raw

    def acknowledged(self, message: Any, *, handled: bool) -> None:
        """Record a letter that was acknowledged; for *handled*, see `LetterWindow.settled`."""
        place = position_of(id_of(message))
        self.leaves(place)
        self.window.settled(place, handled=handled)

    def leaves(self, place: LetterId) -> None:
        """Record that a letter is no longer in hand: it is acknowledged or handed on."""
        if self._in_order is not None:
            with self._lock:
                self._in_order.pop(place, None)

    def all_come_again(self) -> None:
        """Record that no letter is in hand any more."""
        if self._in_order is not None:
            with self._lock:
                self._in_order.clear()

    def up_to(self, message: Any) -> list[Any]:
        """Return the ids of the letters in hand that were delivered up to *message*.

        If the letter is unknown, or letters have no order because the subscription is Shared, it is
        the only one.
        """
        message_id = id_of(message)
        last = position_of(message_id)
        with self._lock:
            if self._in_order is None or last not in self._in_order:
                return [message_id]
            places = list(self._in_order)
            return [self._in_order[each] for each in places[: places.index(last) + 1]]

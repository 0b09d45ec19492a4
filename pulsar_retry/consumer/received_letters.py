"""The retry topic as a source: which messages are letters, in hand, or second ones of a delivery.

pulsar-client sends acknowledgements in groups, up to a tenth of a second late. If a process is
killed in that moment, its last messages stay unacknowledged, although their letters are published.
The messages are redelivered, and each gets a second letter. From then on two copies circulate.

The two letters are of the same message and the same retry. The second one is superfluous if the
first one was delivered after the second was published, and then settled. A seek or a redrive that
wanted the message handled again came before the second letter was published, and the message was
handled since then. So nothing is lost when the second letter is dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import _pulsar
from pulsar import Message

from pulsar_retry.consumer.source import Entry, Place, Source, place_of
from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.facts import identity_of, is_published_here, made_at
from pulsar_retry.letters.plan import Plan
from pulsar_retry.observe.watch import STRAY, SUPERSEDED
from pulsar_retry.runtime.clock import Clock, Timer
from pulsar_retry.runtime.upstream import id_of, raw_of
from pulsar_retry.wire.owner import Stray
from pulsar_retry.wire.properties import reconsume_times

_log = logging.getLogger("pulsar_retry")

#: How many ledgers of the main topic are remembered. A topic has a new one every few hours.
_MOST_LEDGERS = 1000

#: Equal for the letters of one delivery: their identity, and their count.
Fingerprint = tuple[str, int]

#: Seconds for which a letter is remembered: longer than the restart of a process takes.
_REMEMBERED_SECONDS = 600.0

#: The maximum difference in seconds between this clock and those of other publishers.
_SKEW = 0.5

#: How many letters are remembered; the oldest are forgotten.
_MOST = 10_000

#: How many letter ids are remembered for each fingerprint; the oldest are forgotten.
_MOST_IDS = 4


class _Known:
    """The known letters of one delivery. A plain class, because one is made for each letter.

    Attributes:
        ids: The latest letters that were seen here.
        handled: When the last settled one was delivered; 0 if none is settled.
        seen: When one of them was last seen.
    """

    __slots__ = ("handled", "ids", "seen")

    def __init__(self) -> None:
        self.ids: tuple[Place, ...] = ()
        self.handled = 0.0
        self.seen = 0.0


class LetterWindow:
    """Remembers the last letters that were delivered here, each in O(1). Thread-safe.

    It does not know letters that other consumers have received. If a subscription has several
    consumers, a duplicate is only recognized if the same consumer gets both letters.

    Attributes:
        dropped: How many letters were superfluous.
    """

    def __init__(
        self,
        most: int = _MOST,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make an empty window.

        Args:
            most: How many letters are remembered.
            clock: Returns the seconds since 1970, which are compared with publishers' times.
            steady: Returns the seconds of a clock that is never set.
        """
        self.dropped = 0
        self._most = most
        self._clock = clock
        self._steady = steady
        self._clock_offset = clock() - steady()
        # In the order in which they were last seen.
        self._known: OrderedDict[Fingerprint, _Known] = OrderedDict()
        self._in_hand: dict[Place, tuple[Fingerprint, float]] = {}
        self._lock = threading.Lock()

    def came(self, raw: Any, letter: Place, properties: Mapping[str, str]) -> bool:
        """Record a raw letter by its *properties*; tell whether it must only be acknowledged.

        Other clients' letters, and those of copied properties, cannot be recognized.
        """
        identity, count = identity_of(raw, properties), reconsume_times(properties)
        if identity is None or not count:
            return False
        made = made_at(properties, raw.publish_timestamp() / 1000)
        if not self.delivered(letter, (identity, count), made):
            return False
        _log.info(
            "letter %s of %s is dropped: its message was handled after the letter was published",
            raw.message_id(),
            raw.topic_name(),
        )
        return True

    def delivered(self, letter: Place, print_: Fingerprint, published: float) -> bool:
        """Record a letter that is about to be delivered; tell whether it is superfluous.

        The caller must acknowledge a superfluous letter. A redelivery of a letter that was seen
        here before is never superfluous.

        Args:
            letter: Its place.
            print_: Its fingerprint.
            published: When it was published, in seconds since 1970.
        """
        with self._lock:
            now = self._now()
            known = self._known.get(print_)
            if known is None:
                known = self._known[print_] = _Known()
            else:
                self._known.move_to_end(print_)
            is_superfluous = letter not in known.ids and published + _SKEW < known.handled
            self._record_letter(known, letter, now)
            if is_superfluous:
                self.dropped += 1
            else:
                # A redelivery keeps the time of the first delivery, which may be the settled one.
                self._in_hand.setdefault(letter, (print_, now))
            return is_superfluous

    def settled(self, letter: Place, *, handled: bool = True) -> None:
        """Record a letter that was acknowledged or handed on.

        If it was not *handled*, there is a newer letter. That one can be its duplicate, and must
        then not be dropped because of this one.
        """
        with self._lock:
            found = self._in_hand.pop(letter, None)
            if found is not None and handled:
                print_, delivered = found
                known = self._known[print_]
                known.handled = max(known.handled, delivered)

    def clear(self) -> None:
        """Forget everything, because handled messages will be handled again."""
        with self._lock:
            self._forget_all()

    def _record_letter(self, known: _Known, letter: Place, now: float) -> None:
        """Remember *letter*, and forget the oldest letters that are too many or too old."""
        known.seen = now
        if letter not in known.ids:
            for old in known.ids[: 1 - _MOST_IDS]:
                self._in_hand.pop(old, None)
            known.ids = (*known.ids[1 - _MOST_IDS :], letter)
        too_old = now - _REMEMBERED_SECONDS
        while len(self._known) > self._most or next(iter(self._known.values())).seen < too_old:
            for old in self._known.popitem(last=False)[1].ids:
                self._in_hand.pop(old, None)

    def _now(self) -> float:
        """Return the time. If the clock was set, forget everything with a time from before."""
        now, steady = self._clock(), self._steady()
        if abs(now - steady - self._clock_offset) > _SKEW:
            self._clock_offset = now - steady
            self._forget_all()
        return now

    def _forget_all(self) -> None:
        self._known.clear()
        self._in_hand.clear()


class ReceivedLetters(Source):
    """The raw consumer of the retry topic, and the letters that came from it. Thread-safe.

    An id does not include its topic, but no two topics of a cluster share a ledger. The ledgers of
    the letters that were received here are known, and most of those of the topic's messages.

    The retry topic is always Shared, so the broker has no cumulative acknowledgement for it. For an
    Exclusive or Failover consumer, "up to this letter" means the letters delivered before it. So
    these are remembered in the order of their delivery.

    Attributes:
        window: Recognizes duplicates.
        knows_all: Whether each message that was received has been recorded.
    """

    def __init__(
        self, plan: Plan, timer: Timer, clock: Clock, not_retried: Callable[[Iterable[Entry]], None]
    ) -> None:
        """Start with the plan of a subscription with retries; for the others see `Source`."""
        super().__init__(timer, not_retried)
        assert plan.topics is not None  # this plan has retries
        self.window = LetterWindow(clock=clock.time, steady=clock.monotonic)
        self.knows_all = True
        self._topic = plan.topics.retry
        self._ledgers: set[int] = set()
        self._others: set[int] = set()
        self._in_order: dict[Place, Any] | None = None if plan.shared else {}
        self._recipient = plan.recipient
        self._has_warned = False

    # -- receiving ------------------------------------------------------------------------------

    def arrived(self, raw: Any) -> str | None:
        """Record a raw letter; return why it must not be handled: an outcome; None if it must.

        It is a letter of another subscription, or the second letter of one delivery.
        """
        message_id = raw.message_id()
        place = place_of(message_id)
        self._ledgers.add(message_id.ledger_id())
        if self._in_order is not None:
            with self._lock:
                self._in_order.pop(place, None)  # a redelivered letter moves to the end
                self._in_order[place] = message_id
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
        return SUPERSEDED if self.window.came(raw, place, properties) else None

    def saw_other(self, ledger: int) -> None:
        """Record the ledger of a message of the main topic."""
        if ledger not in self._others:
            if len(self._others) >= _MOST_LEDGERS:
                self._others.clear()
                self.knows_all = False
            self._others.add(ledger)

    def includes(self, message: Any) -> bool:
        """Tell whether *message*, or the message of an id, is a letter.

        Raises:
            ConfigError: that cannot be told of the id.
        """
        if isinstance(message, Message | _pulsar.Message):
            known: bool | None = getattr(message, "is_letter", None)
            return self._recipient.is_retry(message.topic_name()) if known is None else known
        raw = raw_of(message)
        return isinstance(raw, _pulsar.MessageId) and self._holds(raw)

    def has_ledger_of(self, message_id: Any) -> bool:
        """Tell whether a letter of the ledger of a raw id was received here."""
        return message_id.ledger_id() in self._ledgers

    def _holds(self, message_id: Any) -> bool:
        """Tell whether a raw message id is a letter's.

        Raises:
            ConfigError: no message of its ledger was received here, so it may be either.
        """
        if self.has_ledger_of(message_id):
            return True
        if message_id.ledger_id() not in self._others and self.knows_all:
            raise ConfigError(
                f"the message id {message_id} may belong to the topic or to {self._topic}, because "
                "this consumer has received no message of its ledger: pass the message, or use a "
                "consumer of the right topic without enable_retry"
            )
        return False

    # -- settling -------------------------------------------------------------------------------

    def leaves(self, message_id: Any) -> None:
        """Record that a letter is no longer in hand; see `Source.leaves`."""
        if self._in_order is not None:
            with self._lock:
                self._in_order.pop(place_of(message_id), None)

    def clear(self) -> None:
        """Cancel all nacks, and record that no letter is in hand; see `Source.clear`."""
        with self._lock:
            super().clear()
            if self._in_order is not None:
                self._in_order.clear()

    def up_to(self, message: Any) -> list[Any]:
        """Return the ids of the letters in hand that were delivered up to *message*.

        If the letter is unknown, or letters have no order because the subscription is Shared, it is
        the only one.
        """
        message_id = id_of(message)
        last = place_of(message_id)
        with self._lock:
            if self._in_order is None or last not in self._in_order:
                return [message_id]
            places = list(self._in_order)
            return [self._in_order[each] for each in places[: places.index(last) + 1]]

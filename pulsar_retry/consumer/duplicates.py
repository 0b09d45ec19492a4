"""Recognizes a second letter of one delivery, which is not needed.

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
from collections.abc import Callable, Mapping
from typing import Any

from pulsar_retry.letters.identity import identity_of
from pulsar_retry.letters.stamps import made_at
from pulsar_retry.wire.properties import reconsume_times

_log = logging.getLogger("pulsar_retry")

#: Ledger, entry, partition and batch index: identifies a letter within its topic.
LetterId = tuple[int, int, int, int]

#: Equal for the letters of one delivery: their identity, and their count.
Fingerprint = tuple[str, int]

#: Seconds for which a letter is remembered: longer than the restart of a process takes.
_REMEMBERED_SECONDS = 600.0

#: The maximum difference in seconds between this clock and those of other publishers.
_SKEW = 0.5

#: Seconds after a message was settled in which a copy of it can be recognized.
_COPY_SECONDS = 60.0

#: How many letters, and how many settled messages, are remembered; the oldest are forgotten.
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
        self.ids: tuple[LetterId, ...] = ()
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
        self._in_hand: dict[LetterId, tuple[Fingerprint, float]] = {}
        self._lock = threading.Lock()

    def came(self, raw: Any, letter: LetterId, properties: Mapping[str, str]) -> bool:
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

    def delivered(self, letter: LetterId, print_: Fingerprint, published: float) -> bool:
        """Record a letter that is about to be delivered; tell whether it is superfluous.

        The caller must acknowledge a superfluous letter. A redelivery of a letter that was seen
        here before is never superfluous.

        Args:
            letter: Its id.
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

    def settled(self, letter: LetterId, *, handled: bool = True) -> None:
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

    def _record_letter(self, known: _Known, letter: LetterId, now: float) -> None:
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


class Copies:
    """Recognizes copies of messages that were settled meanwhile. Thread-safe.

    An acknowledgement time-out has a message delivered again while its handler is still at work. If
    the handler then settles the message, the copy is under way already. It is not needed, and a
    second letter of it would be one too many.

    A message that comes again for another reason is needed, for example after a seek. So at most
    one copy is dropped for each request of this consumer, soon after the message was settled, and
    only if the broker counts a redelivery. After a seek it begins at 0.
    """

    def __init__(self, now: Callable[[], float], most: int = _MOST) -> None:
        """Make it; *most* messages are remembered, and the oldest are forgotten."""
        self._now = now
        self._most = most
        self._lock = threading.Lock()
        # Whether each is acknowledged (otherwise it was handed on), and since when.
        self._settled: OrderedDict[LetterId, tuple[bool, float]] = OrderedDict()

    def settled(self, place: LetterId, *, is_acknowledged: bool) -> None:
        """Record a message that is acknowledged or handed on, of which a copy was requested."""
        with self._lock:
            self._settled[place] = is_acknowledged, self._now()
            if len(self._settled) > self._most:
                self._settled.popitem(last=False)

    def comes_again(self, place: LetterId) -> None:
        """Record a message that was nacked, or whose letter has failed: its next copy is needed."""
        with self._lock:
            self._settled.pop(place, None)

    def clear(self) -> None:
        """Forget everything, because settled messages will be delivered again."""
        with self._lock:
            self._settled.clear()

    def find(self, place: LetterId, redeliveries: int) -> bool | None:
        """Return whether a received message is an acknowledged copy; None if it is no copy.

        Args:
            place: Its id.
            redeliveries: How often the broker has redelivered it.
        """
        with self._lock:
            is_acknowledged, since = self._settled.pop(place, (None, 0.0))
            is_copy = redeliveries and self._now() < since + _COPY_SECONDS
            return is_acknowledged if is_copy else None

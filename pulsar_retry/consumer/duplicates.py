"""Second letters of one message: which of them are superfluous.

pulsar-client sends acknowledgements in groups, up to a tenth of a second late. A process that is
killed in that moment leaves its last messages as well as the letters that it has made of them. The
messages come again, and each has a second letter made of it: from then on it lives twice.

The two letters are equal in all that a message is. The second is superfluous if the first was
delivered after the second was published, and then settled: whoever wanted the message handled
again, by a seek or a redrive perhaps, wanted it before the second was published, and has had it
handled since. So dropping it can lose nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any

from pulsar_retry.letters.identity import identity_of
from pulsar_retry.letters.plan import DEFAULT_MOST, Plan
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.wire.codecs import READ
from pulsar_retry.wire.properties import (
    DELAY,
    DELAY_TIME,
    FAILURE,
    SYSTEM_PROPERTIES,
    reconsume_times,
)

_log = logging.getLogger("pulsar_retry")

#: Ledger, entry, partition and batch index: what tells a letter from all others of its topic.
LetterId = tuple[int, int, int, int]

#: What is equal for letters of one delivery: their identity, and a hash of all that counts.
Fingerprint = tuple[str, int]

#: Seconds for which one is remembered: more than it takes to start a process again.
_AGE = 600.0

#: Seconds by which the clocks of those who publish letters may differ from the one here.
_SKEW = 0.5

#: Letters of one message, by the same count, that are told from each other.
_TWINS = 4

#: What two letters of one delivery may differ in: they tell of failures at different times.
_VARYING = (READ - SYSTEM_PROPERTIES) | {DELAY_TIME, DELAY}


def fingerprint(
    properties: Mapping[str, str],
    content: bytes,
    envelope: tuple[object, ...],
    identity: str | None,
) -> Fingerprint | None:
    """Return what is equal for letters of one delivery, and for no others.

    All of the letter counts but what tells of its failure, for whoever has made letters of one
    message that differ, wants each of them.

    Args:
        properties: The letter's.
        content: Its payload.
        envelope: What else its message has, such as keys and event time.
        identity: The letter's own (`identity_of`); None: it has none.

    Returns:
        The identity, and a hash of 64 bits by a key of this process's own, for it is only ever
        compared within it; None if the letter is not to be told from others.
    """
    if identity is None or not reconsume_times(properties):
        return None
    names, values_of = _what_counts(tuple(properties))
    return identity, hash((names, values_of(properties), content, envelope))


@lru_cache(256)  # the letters of one application have the same names
def _what_counts(
    names: tuple[str, ...],
) -> tuple[tuple[str, ...], Callable[[Mapping[str, str]], Any]]:
    """Return which of a letter's properties count, in one order, and what reads their values."""
    same = sorted(each for each in names if each not in _VARYING and not each.startswith(FAILURE))
    return tuple(same), itemgetter(*same)


class _Known:
    """What is known of the letters of one delivery; a plain class, for one is made per letter.

    Attributes:
        ids: Which of them were seen here, the latest.
        handled: When the last one that is settled was delivered; 0: none is.
        seen: When one was seen last.
    """

    __slots__ = ("handled", "ids", "seen")

    def __init__(self) -> None:
        self.ids: tuple[LetterId, ...] = ()
        self.handled = 0.0
        self.seen = 0.0


class LetterWindow:
    """Remembers the last letters that were delivered here, each in O(1). Thread-safe.

    It knows nothing of letters that others have received: with several consumers of a subscription
    the two letters of a message meet only where the same consumer gets both.

    Attributes:
        dropped: How many were superfluous.
    """

    def __init__(
        self,
        most: int = DEFAULT_MOST,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make it for *most* letters; *clock* is that of publications, *steady* never set."""
        self.dropped = 0
        self._most = most
        self._clock = clock
        self._steady = steady
        self._ahead = clock() - steady()
        # The one seen last is the last.
        self._known: OrderedDict[Fingerprint, _Known] = OrderedDict()
        self._in_hand: dict[LetterId, tuple[Fingerprint, float]] = {}
        self._lock = threading.Lock()

    def delivered(self, letter: LetterId, print_: Fingerprint, published: float) -> bool:
        """Take note of a letter that is about to be delivered; tell whether it is superfluous.

        Then it is to be acknowledged. A letter that was seen here before never is.

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
            self._see(known, letter, now)
            if is_superfluous:
                self.dropped += 1
            else:
                self._in_hand[letter] = (print_, now)
            return is_superfluous

    def settled(self, letter: LetterId) -> None:
        """Take note of a letter that was acknowledged, or handed on."""
        with self._lock:
            found = self._in_hand.pop(letter, None)
            if found is not None:
                print_, delivered = found
                known = self._known[print_]
                known.handled = max(known.handled, delivered)

    def passed_over(self, letter: LetterId) -> None:
        """Take note of a letter that is acknowledged for a newer one: nobody handled it.

        The newer one may well be its twin, which must not be dropped for it in turn.
        """
        with self._lock:
            self._in_hand.pop(letter, None)

    def clear(self) -> None:
        """Forget all: what was handled is to be handled again."""
        with self._lock:
            self._forget_all()

    def _see(self, known: _Known, letter: LetterId, now: float) -> None:
        known.seen = now
        if letter not in known.ids:
            for old in known.ids[: 1 - _TWINS]:
                self._in_hand.pop(old, None)
            known.ids = (*known.ids[1 - _TWINS :], letter)
        while len(self._known) > self._most or self._oldest().seen < now - _AGE:
            for old in self._known.popitem(last=False)[1].ids:
                self._in_hand.pop(old, None)

    def _oldest(self) -> _Known:
        return self._known[next(iter(self._known))]

    def _now(self) -> float:
        """Return the time. Where the clock was set, no time from before means anything."""
        now, steady = self._clock(), self._steady()
        if abs(now - steady - self._ahead) > _SKEW:
            self._ahead = now - steady
            self._forget_all()
        return now

    def _forget_all(self) -> None:
        self._known.clear()
        self._in_hand.clear()


class Deduper:
    """What a consumer remembers of its letters. Thread-safe."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        """Make it for the plan of a subscription with retries."""
        self._window = LetterWindow(plan.dedupe_letters, clock=clock.time, steady=clock.monotonic)
        self.clear = self._window.clear
        self.settled = self._window.settled
        self.passed_over = self._window.passed_over

    def delivered(self, raw: Any, letter: LetterId) -> bool:
        """Take note of a raw letter; tell whether it is superfluous, to be acknowledged only."""
        try:
            properties = raw.properties()
            identity = identity_of(raw, properties)
            print_ = fingerprint(properties, raw.data(), _envelope(raw), identity)
        except UnicodeDecodeError:
            return False
        if print_ is None:
            return False
        if not self._window.delivered(letter, print_, raw.publish_timestamp() / 1000):
            return False
        _log.info(
            "letter %s of %s is dropped: its message was handled after it was published",
            raw.message_id(),
            raw.topic_name(),
        )
        return True

    @property
    def dropped(self) -> int:
        """How many letters were superfluous."""
        return self._window.dropped


def _envelope(raw: Any) -> tuple[object, ...]:
    """Return what tells messages apart beside properties and payload."""
    return (
        raw.has_null_value(),
        raw.partition_key(),
        raw.ordering_key(),
        raw.event_timestamp(),
    )

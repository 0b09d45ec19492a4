"""The process's memory of its letters, so that no message gets its attempts twice.

pulsar-client sends acknowledgements in groups, up to a tenth of a second late. If a process is
killed in that moment, both exist: the letter that it has published, and the message that it has not
acknowledged. Each of the two would then have all attempts. So a process remembers of each message
that has failed:

- How many of its attempts have failed. Copies that come soon continue from this count. With nacks,
  and for lanes whose messages the broker delivers again, nothing else counts. Without retry letters
  the broker redelivers whole batches, also with messages that are dead: these are dropped.
- The stamp of the last letter that was published. An older retry letter, from any process, is
  *superseded*: it is dropped, unless it counts more attempts. This loses nothing, because the newer
  letter is handled after the older one was published. An original may come again on purpose: it is
  dropped only if it is part of a batch, has a dead letter, and comes after a backoff (`closed`).

The consumer's window drops letters too (`LetterWindow`). It knows what was received, this module
what was published, and each drops what the other cannot.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import attrs

from pulsar_retry.letters.facts import next_stamp, stamp_of

#: How many messages are remembered; the oldest are forgotten first.
_MOST = 10_000

#: Seconds for which a message is remembered after it is due, or dead. A broker needs less to
#: redeliver the messages of a killed process, and later a user may want to start it again.
_REMEMBERED_AFTER_DUE = 30.0

#: Seconds in which copies come after a consumer was opened again.
_COPIES_COME_FOR = 60.0


class Record(NamedTuple):
    """What was recorded of a failed attempt.

    Attributes:
        key: The identity of the message.
        failures: How many of its attempts have failed. This is the new count.
        stamp: The stamp of the letter.
    """

    key: str
    failures: int
    stamp: int


@attrs.define
class _Known:
    """What is known of a message.

    Attributes:
        failures: How many of its attempts have failed.
        until: When its letters are out, with a margin, by the monotonic clock.
        issued: The greatest stamp of its letters, published or not.
        stamp: The greatest stamp of its published letters; 0 if there are none.
        is_dead: Whether that letter is a dead letter.
    """

    failures: int = 0
    until: float = 0.0
    issued: int = 0
    stamp: int = 0
    is_dead: bool = False


class OwnLetters:
    """The last letters that this process has published. Thread-safe.

    A key is the identity of a message, which its letters share.

    Attributes:
        is_empty: Whether no message has failed yet.
        has_copies: Whether there may be copies, see `closed`.
    """

    def __init__(
        self,
        most: int = _MOST,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make an empty memory of *most* messages.

        *clock* returns the seconds since 1970, for stamps, and *steady* those of a clock that is
        never set.
        """
        self.is_empty = True
        self.has_copies = False
        self._failed: dict[str, bool] = {}  # and whether it was dead already
        self._copies_until = -math.inf
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._most = most
        self._clock = clock
        self._steady = steady
        # Reentrant, because a garbage collection can settle messages at any moment.
        self._lock = threading.RLock()

    def failed(
        self, key: str, failures: int, delay: float, properties: Mapping[str, str]
    ) -> Record:
        """Record how many attempts of a message have failed; its next letter may be made of that.

        *delay* is how many seconds later it is delivered again, and *properties* are those of the
        message, or of the letter, that the next one is made from.
        """
        with self._lock:
            self.is_empty = False
            now = self._steady()
            known = self._known.setdefault(key, _Known())
            self._known.move_to_end(key)
            known.failures = max(failures, known.failures if now < known.until else 0)
            known.until = max(known.until, now + delay + _REMEMBERED_AFTER_DUE)
            known.issued = next_stamp(self._clock(), known.issued, stamp_of(properties) or 0)
            if len(self._known) > self._most:
                self._known.popitem(last=False)
            return Record(key, failures, known.issued)

    def published(self, record: Record, *, is_dead: bool = False) -> None:
        """Record that the letter of a failed attempt was published."""
        with self._lock:
            known = self._known.get(record.key)
            # Letters of one message may be published at the same time, by several workers.
            if known is not None and record.stamp > known.stamp:
                known.stamp, known.is_dead = record.stamp, is_dead

    def forget(self, record: Record) -> None:
        """Forget a failed attempt whose letter was not published.

        If more are known, another copy has failed meanwhile, and they stay.
        """
        with self._lock:
            known = self._known.get(record.key)
            if known is not None and known.failures <= record.failures:
                known.failures = 0

    def failures(self, key: str) -> int:
        """Return how many attempts of a message have failed, as far as this process knows."""
        with self._lock:
            known = self._known.get(key)
            return known.failures if known is not None and self._steady() < known.until else 0

    def is_dead(self, key: str) -> bool:
        """Tell whether a message was dead-lettered here a moment ago."""
        with self._lock:
            known = self._known.get(key)
            return known is not None and known.is_dead and self._steady() < known.until

    def closed(self, *, by_hand: bool = False) -> None:
        """Record that the consumer was closed for a while: what has failed may come again.

        A broker that does not know which messages of a batch are acknowledged delivers all of them
        with the first that is not, and counts from 0. Without this, the first ones of a batch might
        be tried again and again, and the others never. Nothing is expected if a user has paused
        *by_hand*, perhaps for a seek.
        """
        with self._lock:
            now = self._steady()
            if by_hand or now >= self._copies_until:
                self._failed.clear()
            if not by_hand:
                recent = {key: it.is_dead for key, it in self._known.items() if now < it.until}
                self._failed.update(recent)
            self._copies_until = math.inf
            self.has_copies = bool(self._failed)

    def opened(self) -> None:
        """Record that the consumer was opened again: copies come now, and their counts go on."""
        with self._lock:
            self._copies_until = until = self._steady() + _COPIES_COME_FOR
            for key in self._failed:
                if (known := self._known.get(key)) is not None:
                    known.until = max(known.until, until)

    def is_copy(self, key: str) -> bool:
        """Tell whether a message of the topic is a copy of one that has a dead letter.

        What has a retry letter is none: a seek removes that letter, and then the message itself is
        the only copy.
        """
        with self._lock:
            return self._failed.get(key, False) and self._copies_come()

    def has_failed(self, key: str) -> bool:
        """Tell whether a message had failed before the consumer was closed, a moment ago."""
        with self._lock:
            return key in self._failed and self._copies_come()

    def _copies_come(self) -> bool:
        self.has_copies = self._steady() < self._copies_until
        return self.has_copies

    def supersede(self, key: str, failures: int, stamp: int | None) -> bool:
        """Tell whether a letter, which counts so many *failures*, is superseded by a newer one.

        A letter without a stamp, such as one of another client, never is.
        """
        with self._lock:
            known = self._known.get(key)
            return (
                known is not None
                and stamp is not None
                and self._steady() < known.until
                and failures <= known.failures
                and stamp < known.stamp
            )

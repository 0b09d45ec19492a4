"""The process's memory of its letters, so that no message gets its attempts twice.

pulsar-client sends acknowledgements in groups, up to a tenth of a second late. If a process is
killed in that moment, both exist: the letter that it has published, and the message that it has not
acknowledged. Each of the two would then produce letters.

So a process remembers two facts about each message that has failed:

- The last letter that it has published, or that there is a dead letter. An older retry letter, from
  any process, is *superseded*: it is dropped, unless it counts more attempts. The letters'
  stamps tell which one is older (`letters/stamps.py`). This loses nothing, also when the
  subscription is moved back, because the newer letter is handled after the older one was published.
  An original is never dropped, because it may come again on purpose.
- How many attempts it has had. Other copies of the message that come soon continue from this count
  instead of their own. This holds only for a short time, because later a user may want to start the
  message again.

Without retry letters the same is remembered. In that mode the broker redelivers whole batches, with
all messages that are not acknowledged yet. These include messages in hand, and messages that have a
dead letter already. The second kind is dropped.

The consumer's window drops letters too (`consumer/duplicates.py`). It knows what was received, this
module what was published. docs/decisions/duplicates.md lists what only one of them can drop.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

import attrs

from pulsar_retry.letters.stamps import next_stamp, stamp_of

#: How many messages are remembered; the oldest are forgotten first.
_MOST = 10_000

#: Seconds for which attempts are remembered after a letter is due, or dead. A broker needs less to
#: redeliver the messages of a killed process.
_REMEMBERED_AFTER_DUE = 30.0


@attrs.define
class _Known:
    """What is known of a message.

    Attributes:
        failures: How many of its attempts have failed.
        until: When this is forgotten, by the monotonic clock.
        stamp: The greatest stamp of its published letters; 0 if there are none.
        issued: The greatest stamp of its letters, published or not.
        out_until: When all of its letters have been delivered, with a margin, by the same clock.
        dead: Whether the message is dead.
    """

    failures: int
    until: float
    stamp: int = 0
    issued: int = 0
    out_until: float = 0.0
    dead: bool = False


class OwnLetters:
    """The last letters that this process has published. Thread-safe.

    Attributes:
        changes: How often what is known of attempts has changed; 0: nothing was recorded yet.
    """

    def __init__(
        self,
        most: int = _MOST,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make an empty memory.

        Args:
            most: How many messages are remembered.
            clock: Returns the seconds since 1970, for stamps.
            steady: Returns the seconds of a clock that is never set.
        """
        self.changes = 0
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._most = most
        self._clock = clock
        self._steady = steady
        # Reentrant, because a garbage collection can settle messages at any moment.
        self._lock = threading.RLock()

    def stamp(self, key: str, properties: Mapping[str, str]) -> int:
        """Return the stamp of a new letter.

        Args:
            key: The identity of the message, which its letters share.
            properties: The properties of the message, or of the letter, that it is made from.
        """
        with self._lock:
            known = self._known.get(key)
            issued = next_stamp(
                self._clock(), 0 if known is None else known.issued, stamp_of(properties) or 0
            )
            if known is not None:
                known.issued = issued
            return issued

    def failed(self, key: str, failures: int, delay: float = 0.0) -> None:
        """Record a failed attempt.

        Args:
            key: The identity of the message, which its letters share.
            failures: How many of its attempts have failed by now.
            delay: Seconds until the message is delivered again.
        """
        with self._lock:
            self.changes += 1
            now = self._steady()
            until = now + delay + _REMEMBERED_AFTER_DUE
            known = self._known.get(key)
            if known is None:
                self._known[key] = _Known(failures, until, out_until=until)
                if len(self._known) > self._most:
                    self._known.popitem(last=False)
                return
            known.failures = max(failures, known.failures if now < known.until else 0)
            known.until = until
            known.out_until = max(known.out_until, until)
            self._known.move_to_end(key)

    def published(self, key: str, stamp: int, *, dead: bool = False) -> None:
        """Record a letter that was published.

        Args:
            key: The identity of its message.
            stamp: The stamp of the letter.
            dead: Whether it is a dead letter.
        """
        with self._lock:
            known = self._known.get(key)
            # Letters of one message may be published at the same time, by several workers.
            if known is not None and stamp > known.stamp:
                known.stamp, known.dead = stamp, dead

    def forget(self, key: str, failures: int) -> None:
        """Forget the attempts of a message, because the letter of the last one was not published.

        Args:
            key: The identity of the message.
            failures: What `failed` was called with. If another copy of the message has failed
                since, its attempts are not forgotten.
        """
        with self._lock:
            known = self._known.get(key)
            if known is not None and known.failures <= failures:
                self.changes += 1
                known.until = 0.0

    def failures(self, key: str) -> int:
        """Return how many attempts of a message have failed, as far as this process knows."""
        with self._lock:
            return self._failures(key)

    def is_dead(self, key: str) -> bool:
        """Tell whether a message was dead-lettered here a moment ago."""
        with self._lock:
            known = self._known.get(key)
            return known is not None and known.dead and self._steady() < known.until

    def _failures(self, key: str) -> int:
        known = self._known.get(key)
        return known.failures if known is not None and self._steady() < known.until else 0

    def supersede(self, key: str, failures: int, stamp: int | None) -> bool:
        """Tell whether a letter is superseded by a newer one.

        Args:
            key: The identity of its message.
            failures: How many attempts of the message have failed, as the letter says.
            stamp: The stamp of the letter; None if it has none, for example because another client
                made it.
        """
        with self._lock:
            known = self._known.get(key)
            if known is None or stamp is None:
                return False
            if known.dead and self._steady() >= known.out_until:
                return False
            return failures <= known.failures and stamp < known.stamp

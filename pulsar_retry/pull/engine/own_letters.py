"""The process's memory of its letters, so that no message gets its attempts twice. Pure.

pulsar-client sends acknowledgements in groups, up to a tenth of a second late. If a process is
killed in that moment, both exist: the letter that it has published, and the message that it has not
acknowledged. Each of the two would then produce letters.

So a process remembers two facts about each message that has failed:

- The last letter that it has published, or that there is a dead letter. An older retry letter is
  *superseded*: it is dropped. This loses nothing, also when the subscription is moved back, because
  the newer letter is handled after the older one was published. For its own letters the process
  knows the order. A letter of another process is older if it was published earlier, and it is
  dropped only if it does not count more attempts. An original is never dropped, because it may come
  again on purpose.
- How many attempts it has had. Other copies of the message that come soon continue from this count
  instead of their own. This holds only for a short time, because later a user may want to start the
  message again.

Without retry letters the same is remembered. In that mode the broker redelivers whole batches, with
all messages that are not acknowledged yet. These include messages in hand, and messages that have a
dead letter already. The second kind is dropped.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

#: How many messages are remembered; the oldest are forgotten first.
_MOST = 10_000

#: Seconds for which attempts are remembered after a letter is due, or dead. A broker needs less to
#: redeliver the messages of a killed process.
_SOON = 30.0


class Stamp(NamedTuple):
    """The identity of a letter.

    Attributes:
        writer: The process that publishes the letter.
        number: The letter's number among the letters of that process.
    """

    writer: str
    number: int

    def __str__(self) -> str:
        return f"{self.writer}.{self.number}"

    @classmethod
    def read(cls, text: str | None) -> Stamp | None:
        """Return the stamp that a letter carries; None if it has none, or an invalid one."""
        writer, _, number = (text or "").partition(".")
        return cls(writer, int(number)) if writer and _NUMBER.fullmatch(number) else None


class _Known(NamedTuple):
    """What is known of a message.

    Attributes:
        failures: How many of its attempts have failed.
        until: When this is forgotten, by the monotonic clock.
        number: The number of its last letter; 0 if there was none.
        at: The earliest time at which that letter was published, in seconds since 1970.
        dead: Whether the message is dead.
    """

    failures: int
    until: float
    number: int
    at: float
    dead: bool = False


#: The number of a stamp. int() alone would accept other digits as well, and fail with more than
#: 4300.
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)

_NOTHING = _Known(0, 0.0, 0, 0.0)


class OwnLetters:
    """The last letters that this process has published. Thread-safe.

    Attributes:
        is_empty: Whether no failure was recorded yet.
    """

    def __init__(self, most: int = _MOST, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_empty = True
        self._writer = uuid.uuid4().hex[:16]
        self._number = 0
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()

    def stamp(self) -> Stamp:
        """Return the stamp of the next letter."""
        with self._lock:
            self._number += 1
            return Stamp(self._writer, self._number)

    def failed(self, key: str, failures: int, delay: float = 0.0) -> None:
        """Record a failed attempt.

        Args:
            key: The identity of the message, which its letters share.
            failures: How many of its attempts have failed by now.
            delay: Seconds until it comes back.
        """
        with self._lock:
            known = self._known.get(key, _NOTHING)
            until = self._clock() + delay + _SOON
            failures = max(failures, self._failures(key))
            self._known[key] = known._replace(failures=failures, until=until)
            self._known.move_to_end(key)
            if len(self._known) > self._most:
                self._known.popitem(last=False)
            self.is_empty = False

    def published(self, key: str, stamp: Stamp, *, at: float, dead: bool = False) -> None:
        """Record a letter that was published.

        Args:
            key: The identity of its message.
            stamp: The stamp of the letter.
            at: The earliest time at which it was published, in seconds since 1970.
            dead: Whether it is a dead letter.
        """
        with self._lock:
            known = self._known.get(key)
            # Letters of one message may be published at the same time, by several workers.
            if known is not None and stamp.number > known.number:
                self._known[key] = known._replace(number=stamp.number, at=at, dead=dead)

    def forget(self, key: str) -> None:
        """Forget the attempts of a message, because its letter was not published."""
        with self._lock:
            if (known := self._known.get(key)) is not None:
                self._known[key] = known._replace(until=0.0)

    def clear(self) -> None:
        """Forget all messages: they begin anew."""
        with self._lock:
            self._known.clear()

    def failures(self, key: str) -> int:
        """Return how many attempts of a message have failed, as far as this process knows."""
        with self._lock:
            return self._failures(key)

    def is_dead(self, key: str) -> bool:
        """Tell whether a message was dead-lettered here a moment ago."""
        with self._lock:
            known = self._known.get(key, _NOTHING)
            return known.dead and self._clock() < known.until

    def _failures(self, key: str) -> int:
        known = self._known.get(key, _NOTHING)
        return known.failures if self._clock() < known.until else 0

    def supersede(self, key: str, failures: int, at: float, stamp: Stamp | None) -> bool:
        """Tell whether a letter is superseded by a newer one.

        Args:
            key: The identity of its message.
            failures: How many attempts of the message have failed, as the letter says.
            at: When the letter was published, in seconds since 1970.
            stamp: The stamp of the letter; None if it has none, for example because another client
                made it.
        """
        with self._lock:
            known = self._known.get(key, _NOTHING)
        if stamp is None or (known.dead and self._clock() >= known.until):
            return False
        if stamp.writer == self._writer:
            return stamp.number < known.number
        return failures <= known.failures and at < known.at

"""What a process remembers of its letters: so a kill gives no message all attempts twice. Pure.

pulsar-client sends acknowledgements in groups, up to a tenth of a second late. A process that is
killed in that moment leaves both: the letter that it has published, and the message that it has not
acknowledged. Each of the two would go on to have letters of its own.

So a process remembers, of each message of which it has published a letter,

- the last letter. An older one is *superseded*: it is dropped. This can lose nothing, also when a
  subscription is set back: the newer letter is handled after the older one was published. Of its
  own letters it knows the order; another's is older by the time of its publication, and is dropped
  only if it counts no more attempts. An original is never dropped, for it may come again on
  purpose.
- how many attempts the message has had. Whatever else of the message comes soon goes on from there
  instead of from its own count. Not for long: later somebody may want it to begin anew.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

#: Messages that are remembered, the latest.
_MOST = 10_000

#: Seconds after a letter is due, or dead, for which the attempts are remembered: more than a broker
#: takes to redeliver what a killed process held.
_SOON = 60.0


class Stamp(NamedTuple):
    """What tells a letter from all others.

    Attributes:
        writer: The process that publishes it.
        number: Its number among that process's letters.
    """

    writer: str
    number: int

    def __str__(self) -> str:
        return f"{self.writer}.{self.number}"

    @classmethod
    def read(cls, text: str | None) -> Stamp | None:
        """Return the stamp that a letter carries; None if it has none, or garbage."""
        writer, _, number = (text or "").partition(".")
        return cls(writer, int(number)) if writer and _NUMBER.fullmatch(number) else None


class _Known(NamedTuple):
    """What is known of a message.

    Attributes:
        failures: How many of its attempts have failed.
        until: When that is forgotten, by the monotonic clock.
        number: The number of its last letter.
        at: When that was published at the earliest, in seconds since 1970.
    """

    failures: int
    until: float
    number: int
    at: float


#: A number of a stamp; int() takes other digits as well, and no more than 4300.
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)

_NOTHING = _Known(0, 0.0, 0, 0.0)


class OwnLetters:
    """The last letters that this process has published. Thread-safe.

    Attributes:
        is_empty: Whether there has been none.
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

    def published(self, key: str, stamp: Stamp, failures: int, *, at: float, delay: float) -> None:
        """Take note of a retry letter that is out.

        Args:
            key: What tells the message from others, the same for its letters.
            stamp: The letter's.
            failures: How many of the message's attempts have failed.
            at: When it was published at the earliest, in seconds since 1970.
            delay: Seconds until it is due.
        """
        with self._lock:
            known = self._known.get(key, _NOTHING)
            # Letters of one message may be published at the same time, by several workers.
            number, at = max((known.number, known.at), (stamp.number, at))
            self._remember(key, failures, delay, number, at)

    def dead(self, key: str, failures: int) -> None:
        """Take note of a dead letter that is out. Retry letters that are left are not dropped."""
        with self._lock:
            known = self._known.get(key, _NOTHING)
            self._remember(key, failures, 0.0, known.number, known.at)

    def _remember(self, key: str, failures: int, delay: float, number: int, at: float) -> None:
        until = self._clock() + delay + _SOON
        self._known[key] = _Known(max(failures, self._failures(key)), until, number, at)
        self._known.move_to_end(key)
        self.is_empty = False
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def failures(self, key: str) -> int:
        """Return how many attempts of a message have failed, as far as that is known here."""
        with self._lock:
            return self._failures(key)

    def _failures(self, key: str) -> int:
        known = self._known.get(key, _NOTHING)
        return known.failures if self._clock() < known.until else 0

    def supersede(self, key: str, failures: int, at: float, stamp: Stamp | None) -> bool:
        """Tell whether a letter is superfluous.

        Args:
            key: Its message's.
            failures: How many attempts of the message have failed, as it says.
            at: When it was published, in seconds since 1970.
            stamp: Its stamp; None: it has none, for example because it is another client's.
        """
        with self._lock:
            known = self._known.get(key)
        if known is None or stamp is None:
            return False
        if stamp.writer == self._writer:
            return stamp.number < known.number
        return failures <= known.failures and at < known.at

"""What a process remembers of its letters: so a kill gives no message all attempts twice. Pure.

pulsar-client sends acknowledgements in groups, up to a tenth of a second late. A process that is
killed in that moment leaves both: the letter that it has published, and the message that it has not
acknowledged. Each of the two would go on to have letters of its own.

So a process remembers, of each message that has failed,

- the last letter that it has published, or that there is a dead letter. An older retry letter is
  *superseded*: it is dropped. This can lose nothing, also when a subscription is set back: the
  newer letter is handled after the older one was published. Of its own letters it knows the order;
  another's is older by the time of its publication, and is dropped only if it counts no more
  attempts. An original is never dropped, for it may come again on purpose.
- how many attempts it has had. Whatever else of the message comes soon goes on from there instead
  of from its own count. Not for long: later somebody may want it to begin anew.

Without retry letters this is remembered too. There the broker redelivers whole batches, with all of
their messages that are not acknowledged yet: also those that are in hand, and those of which a dead
letter is out already. The second kind is dropped.
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
_SOON = 30.0


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
        number: The number of its last letter; 0: there was none.
        at: When that was published at the earliest, in seconds since 1970.
        dead: Whether it is dead.
    """

    failures: int
    until: float
    number: int
    at: float
    dead: bool = False


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

    def failed(self, key: str, failures: int, delay: float = 0.0) -> None:
        """Take note of an attempt that has failed.

        Args:
            key: What tells the message from others, the same for its letters.
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
        """Take note of a letter that is out.

        Args:
            key: Its message's.
            stamp: Its stamp.
            at: When it was published at the earliest, in seconds since 1970.
            dead: Whether it is a dead letter.
        """
        with self._lock:
            known = self._known.get(key)
            # Letters of one message may be published at the same time, by several workers.
            if known is not None and stamp.number > known.number:
                self._known[key] = known._replace(number=stamp.number, at=at, dead=dead)

    def forget(self, key: str) -> None:
        """Forget the attempts of a message: a letter of it is not out."""
        with self._lock:
            if (known := self._known.get(key)) is not None:
                self._known[key] = known._replace(until=0.0)

    def clear(self) -> None:
        """Forget everything: all messages begin anew."""
        with self._lock:
            self._known.clear()

    def failures(self, key: str) -> int:
        """Return how many attempts of a message have failed, as far as that is known here."""
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
        """Tell whether a letter is superfluous.

        Args:
            key: Its message's.
            failures: How many attempts of the message have failed, as it says.
            at: When it was published, in seconds since 1970.
            stamp: Its stamp; None: it has none, for example because it is another client's.
        """
        with self._lock:
            known = self._known.get(key, _NOTHING)
        if stamp is None or (known.dead and self._clock() >= known.until):
            return False
        if stamp.writer == self._writer:
            return stamp.number < known.number
        return failures <= known.failures and at < known.at

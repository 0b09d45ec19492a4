"""Plain counters of what was done. Prometheus reads them when it scrapes.

Counting must not slow messages down. So an acknowledgement only adds one to a plain attribute.
Values that cost more (the number of the attempt, the age of the message) are read for every message
only at low rates. At high rates they are read about a hundred times a second, and each reading
stands for all messages since the last one. Counters are always exact.
"""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

#: At very high rates, one in this number of acknowledgements is sampled.
MOST_APART = 1024
#: The same for letters. Bursts of them are followed by hours with few.
MOST_LETTERS_APART = 16
#: At high rates, the seconds between two samples.
_SAMPLE_INTERVAL = 0.01

#: The outcomes of deliveries.
ACKNOWLEDGED, RETRIED, DEAD_LETTERED = "acknowledged", "retried", "dead_lettered"
NACKED, DROPPED, SUPERSEDED, STRAY = "nacked", "dropped", "superseded", "stray"

#: Seconds for which a subscription's counts are kept after its last consumer here was closed.
KEPT = 600.0

#: How messages are retried: by a letter, by the broker, or in their lane.
LETTER: Final = "letter"
NACK: Final = "nack"
LANE: Final = "lane"

#: The maximum number of values of a label. Further values count as `OTHER`.
MOST_VALUES = 20
OTHER = "other"
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}", re.ASCII)

ATTEMPT_BOUNDS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 11.0, 17.0, 33.0)
CRITICAL_BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 86_400.0)
LATENCY_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)


class Source(Protocol):
    """An object with values for gauges."""

    def gauges(self) -> Mapping[str, float]:
        """Return the present values by the names of gauges, without prefix. Thread-safe."""
        ...


class Buckets:
    """A histogram: the number of values in each bucket, and their sum. Not thread-safe."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, weight: int = 1) -> None:
        """Count *value*, *weight* times."""
        self.counts[bisect_left(self.bounds, value)] += weight
        self.sum += value * weight


class Tally:
    """Counts each value of a label, up to a maximum number of values."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, value: str, times: int = 1) -> None:
        """Count *value*. It counts as `OTHER` if it is not a name, or there are too many values."""
        counts = self.counts
        if value not in counts and (len(counts) >= MOST_VALUES or not _LABEL.fullmatch(value)):
            value = OTHER
        counts[value] = counts.get(value, 0) + times


class Sampling:
    """Decides which of many events are sampled: all at low rates, some at high rates.

    After a burst, at most *most_apart* events pass before the rate is noticed to be low.

    Not thread-safe, but see `count`.

    Attributes:
        count: The number of events. Threads add to it without a lock: the interpreter switches
            threads only at calls and jumps, and ``+= 1`` has neither.
        due: At this count, the next event is sampled (`sampled`).
    """

    def __init__(self, most_apart: int) -> None:
        self.count = 0
        self.due = 1
        self._most_apart = most_apart
        self.all = False
        self._sampled = 0
        self._sampled_at = 0.0
        self._distance = 1

    def sampled(self, now: float) -> int:
        """Record a sample at *now* seconds; return the number of events that it stands for."""
        weight = self.count - self._sampled
        if weight > 0:
            took = now - self._sampled_at
            fast = took < _SAMPLE_INTERVAL
            apart = 2 * self._distance if fast else int(weight * _SAMPLE_INTERVAL / took)
            self._distance = min(max(1, apart), self._most_apart)
            self._sampled, self._sampled_at = self.count, now
        self.due = self.count + (1 if self.all else self._distance)
        return weight


class Counters:
    """The counts of one subscription in this process, for all its consumers.

    Thread-safe.

    Attributes:
        topic: The topic's name, for its label.
        subscription: The subscription's name, for its label.
        messages: The acknowledgements of messages of the topic. Code that adds to its count must
            check when the next sample is due.
        letters: Those of retry letters, which are sampled apart, since their values differ.
        lock: Held during changes of the objects that `tally` and `histogram` return.
    """

    def __init__(self, topic: str, subscription: str) -> None:
        self.topic = topic
        self.subscription = subscription
        self.messages = Sampling(MOST_APART)
        self.letters = Sampling(MOST_LETTERS_APART)
        self.lock = threading.Lock()
        self._tallies: dict[str, Tally] = {}
        self._attempts = Buckets(ATTEMPT_BOUNDS)
        self._ages = Buckets(CRITICAL_BOUNDS)
        self._buckets = {"attempts": self._attempts, "critical_seconds": self._ages}
        self._sources: weakref.WeakSet[Source] = weakref.WeakSet()
        self._idle_since: float | None = None

    # -- writing ----------------------------------------------------------------------------------

    def count(self, metric: str, value: str = OTHER, times: int = 1) -> None:
        """Add *times* to the count of a metric, for the *value* of its label if it has one."""
        with self.lock:
            self.tally(metric).add(value, times)

    def observe(self, metric: str, bounds: Sequence[float], value: float) -> None:
        """Add *value* to a histogram."""
        with self.lock:
            self.histogram(metric, bounds).add(value)

    def tally(self, metric: str) -> Tally:
        """Return a metric's counts, to add several values at once with `lock` held."""
        tally = self._tallies.get(metric)
        if tally is None:
            tally = self._tallies[metric] = Tally()
        return tally

    def histogram(self, metric: str, bounds: Sequence[float]) -> Buckets:
        """Return a metric's histogram, for use with `lock` held."""
        buckets = self._buckets.get(metric)
        if buckets is None:
            buckets = self._buckets[metric] = Buckets(bounds)
        return buckets

    def all_done(self, ends: Iterable[tuple[int, float]]) -> None:
        """Record finished messages: of each the number of its last attempt, and the seconds."""
        with self.lock:
            for attempt, age in ends:
                self._done(attempt, age, 1)

    def _done(self, attempt: int, age: float, weight: int) -> None:
        self._attempts.add(attempt, weight)
        self._ages.add(max(0.0, age), weight)

    def sample(self, events: Sampling, now: float, attempt: int | None, age: float) -> None:
        """Sample an acknowledgement, which stands for all since the last sample.

        Args:
            events: `messages` or `letters`.
            now: The time in seconds.
            attempt: The number of the attempt. None: it is not known, and these acknowledgements
                are not added to the histograms.
            age: Seconds since the message was published.
        """
        with self.lock:
            weight = events.sampled(now)
            if weight > 0 and attempt is not None:
                self._done(attempt, age, weight)

    def sample_all(self) -> None:
        """Sample every acknowledgement from now on, because a consumer needs it."""
        with self.lock:
            for events in (self.messages, self.letters):
                events.all = True
                events.due = 0

    def attach(self, source: Source) -> None:
        """Read gauges from *source* as long as it exists."""
        with self.lock:
            self._sources.add(source)

    def detach(self, source: Source) -> None:
        """Read no more gauges from *source*."""
        with self.lock:
            self._sources.discard(source)

    def is_over(self, now: float) -> bool:
        """Tell whether no source was attached at any call in the last `KEPT` seconds."""
        with self.lock:
            if self._sources:
                self._idle_since = None
            elif self._idle_since is None:
                self._idle_since = now
            return self._idle_since is not None and now - self._idle_since > KEPT

    # -- reading ----------------------------------------------------------------------------------

    def counts(self, metric: str) -> dict[str, int]:
        """Return a metric's counts by the values of its label."""
        with self.lock:
            tally = self._tallies.get(metric)
            found = {} if tally is None else dict(tally.counts)
        if metric == "deliveries" and (acknowledged := self.messages.count + self.letters.count):
            found[ACKNOWLEDGED] = acknowledged
        return found

    def buckets(self, metric: str) -> Buckets | None:
        """Return a copy of a histogram; None if it has no values."""
        with self.lock:
            buckets = self._buckets.get(metric)
            if buckets is None or not any(buckets.counts):
                return None
            copy = Buckets(buckets.bounds)
            copy.counts, copy.sum = list(buckets.counts), buckets.sum
            return copy

    def gauges(self) -> list[Mapping[str, float]]:
        """Return the gauges of each source."""
        with self.lock:
            sources = list(self._sources)
        return [source.gauges() for source in sources]


class Book:
    """The counters of all subscriptions of this process. Thread-safe.

    Counters are kept while they are in use and for `KEPT` seconds longer, so that the last counts
    are scraped too. A subscription that starts again later starts at 0, as after a restart.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[tuple[str, str], Counters] = {}
        # Counters that are not kept any more, as long as other code still uses them.
        self._dropped: weakref.WeakValueDictionary[tuple[str, str], Counters]
        self._dropped = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def counters(self, topic: str, subscription: str) -> Counters:
        """Return the counters of a subscription."""
        with self._lock:
            key = (topic, subscription)
            counters = self._kept.get(key)
            if counters is None:
                self._release_unused()
                counters = self._dropped.pop(key, None) or Counters(topic, subscription)
                self._kept[key] = counters
            return counters

    def all_counters(self) -> list[Counters]:
        """Return those of all subscriptions."""
        with self._lock:
            self._release_unused()
            return [*self._kept.values(), *self._dropped.values()]

    def _release_unused(self) -> None:
        """Drop the counters that were not used for `KEPT` seconds. Call it with the lock held."""
        now = self._clock()
        for key, counters in list(self._kept.items()):
            if counters.is_over(now):
                self._dropped[key] = self._kept.pop(key)

    def clear(self) -> None:
        """Start again with new locks: in a forked child nothing has been counted yet."""
        self.__init__(self._clock)  # type: ignore[misc]  # as it is in a new process


#: The counts of this process.
BOOK = Book()

if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=BOOK.clear)

"""Plain counters of what was done. Prometheus reads them when it scrapes."""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from pulsar_retry.errors import ConfigError
from pulsar_retry.wire.names import TopicName, logical

#: The maximum number of values of a label. Further values count as `OTHER`.
MOST_VALUES = 20
OTHER: Final = "other"

#: The outcome of the deliveries that `Counters.acknowledged` counts.
ACKNOWLEDGED: Final = "acknowledged"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}", re.ASCII)

#: The maximum number of topics in the label of one consumer.
_MOST_TOPICS = 3

#: With this number of subscriptions, the counts of those without an open consumer are dropped.
MOST_SUBSCRIPTIONS = 1000


class Source(Protocol):
    """An object with values for gauges."""

    def gauges(self) -> Mapping[str, float]:
        """Return the present values by the names of gauges, without prefix. Thread-safe."""
        ...


class Counters:
    """The counts of one subscription in this process, for all its consumers. Thread-safe.

    Attributes:
        topic: The topic's name, for its label.
        subscription: The subscription's name, for its label.
        acknowledged: The acknowledgements that `Consumer.acknowledge` has counted itself. Threads
            add to it without a lock: the interpreter switches threads only at calls and jumps, and
            ``+= 1`` has neither.
    """

    def __init__(self, topic: str, subscription: str) -> None:
        self.topic = topic
        self.subscription = subscription
        self.acknowledged = 0
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, int]] = {}
        self._sources: weakref.WeakSet[Source] = weakref.WeakSet()

    # -- writing ----------------------------------------------------------------------------------

    def count(self, metric: str, value: str = OTHER, times: int = 1) -> None:
        """Add *times* to the count of a metric, for the *value* of its label if it has one.

        It counts as `OTHER` if *value* is not a name, or if there are too many values.
        """
        with self._lock:
            counts = self._counts.setdefault(metric, {})
            if value not in counts and (len(counts) >= MOST_VALUES or not _NAME.fullmatch(value)):
                value = OTHER
            counts[value] = counts.get(value, 0) + times

    def attach(self, source: Source) -> None:
        """Read gauges from *source* as long as it exists."""
        with self._lock:
            self._sources.add(source)

    def detach(self, source: Source) -> None:
        """Read no more gauges from *source*."""
        with self._lock:
            self._sources.discard(source)

    # -- reading ----------------------------------------------------------------------------------

    def counts(self, metric: str) -> dict[str, int]:
        """Return a metric's counts by the values of its label."""
        with self._lock:
            found = dict(self._counts.get(metric, {}))
        if metric == "deliveries" and self.acknowledged:
            found[ACKNOWLEDGED] = found.get(ACKNOWLEDGED, 0) + self.acknowledged
        return found

    def gauges(self) -> list[Mapping[str, float]]:
        """Return the gauges of each source."""
        with self._lock:
            sources = list(self._sources)
        return [source.gauges() for source in sources]

    @property
    def has_sources(self) -> bool:
        """Whether a consumer is open."""
        with self._lock:
            return bool(self._sources)


class AllCounters:
    """The counters of all subscriptions of a process. Thread-safe."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str], Counters] = {}
        self._lock = threading.Lock()

    def of(self, topic: Any, subscription: str) -> Counters:
        """Return the counters of a subscription of *topic*, which can be a list or a pattern."""
        key = topic_label(topic), str(subscription)
        with self._lock:
            if key not in self._counters:
                if len(self._counters) >= MOST_SUBSCRIPTIONS:
                    self._counters = {k: c for k, c in self._counters.items() if c.has_sources}
                self._counters[key] = Counters(*key)
            return self._counters[key]

    def all(self) -> list[Counters]:
        """Return those of all subscriptions."""
        with self._lock:
            return list(self._counters.values())

    def clear(self) -> None:
        """Start again with a new lock: in a forked child nothing has been counted yet."""
        self.__init__()  # type: ignore[misc]  # as it is in a new process


#: The counters of this process.
COUNTERS = AllCounters()

if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=COUNTERS.clear)


def topic_label(topic: Any) -> str:
    """Return the text for a consumer's topic, topics or pattern in metrics."""
    if isinstance(topic, str):
        try:
            return str(TopicName.parse(logical(topic)))
        except ConfigError:
            return topic  # the broker decides about it
    if isinstance(topic, Sequence):
        names = sorted(topic_label(each) for each in topic)
        more = len(names) - _MOST_TOPICS
        return ",".join(names[:_MOST_TOPICS]) + (f" and {more} more" if more > 0 else "")
    return str(getattr(topic, "pattern", topic))

"""Tells the consumers of this process when a seek moves their subscription.

The broker disconnects the consumers of a moved subscription, and pulsar-client drops what it has
fetched. It does not know about the messages that were taken from it before, so consumers drop them.
"""

from __future__ import annotations

import re
import threading
import weakref
from typing import Any, Protocol

from pulsar_retry.observe.watch import topic_label
from pulsar_retry.wire.names import logical


class Movable(Protocol):
    """A consumer that can be notified of a seek."""

    def _subscription_moved(self) -> None:
        """Drop everything that is held from before the seek."""


class Moves:
    """Notifies consumers of seeks. Thread-safe."""

    def __init__(self) -> None:
        self._consumers: weakref.WeakKeyDictionary[Movable, tuple[Any, str]] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()

    def watch(self, consumer: Movable, topic: Any, subscription: str) -> None:
        """Notify *consumer* of seeks of its subscription; *topic* can be a list or a pattern."""
        with self._lock:
            self._consumers[consumer] = (topic, subscription)

    def tell(self, topic: Any, subscription: str, but: Movable | None = None) -> None:
        """Notify the consumers of a subscription that it was moved; skip *but*, which knows.

        A consumer of another cluster with the same names may be notified too; it loses nothing.
        """
        with self._lock:
            known = list(self._consumers.items())
        for consumer, (of, name) in known:
            if consumer is not but and name == subscription and _share(of, topic):
                consumer._subscription_moved()  # noqa: SLF001 - a method of the protocol here


def _share(one: Any, other: Any) -> bool:
    """Tell whether two consumers can have a topic in common."""
    if isinstance(one, re.Pattern) or isinstance(other, re.Pattern):
        return True
    return not _names(one).isdisjoint(_names(other))


def _names(topic: Any) -> set[str]:
    topics = [topic] if isinstance(topic, str) else topic
    return {topic_label(logical(each)) for each in topics}


#: The instance of this process.
MOVES = Moves()

"""Which consumers of this process hold messages of a subscription that is moved by a seek.

The broker disconnects the consumers of a subscription that is moved, and pulsar-client forgets what
it has fetched. What was taken from pulsar-client before, it does not know.
"""

from __future__ import annotations

import re
import threading
import weakref
from typing import Any, Protocol

from pulsar_retry.observe.watch import topic_label
from pulsar_retry.wire.names import logical


class Movable(Protocol):
    """A consumer that can be told of a seek."""

    def _subscription_moved(self) -> None:
        """Let go of what is held of before."""


class Moves:
    """Tells consumers of seeks. Thread-safe."""

    def __init__(self) -> None:
        self._consumers: weakref.WeakKeyDictionary[Movable, tuple[Any, str]] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()

    def watch(self, consumer: Movable, topic: Any, subscription: str) -> None:
        """Have *consumer* told of seeks of its subscription to *topic*, several or a pattern."""
        with self._lock:
            self._consumers[consumer] = (topic, subscription)

    def tell(self, topic: Any, subscription: str, but: Movable | None = None) -> None:
        """Tell the consumers of a subscription that it was moved; *but* knows.

        A consumer of another cluster, on which everything has the same name, loses nothing by it.
        """
        with self._lock:
            known = list(self._consumers.items())
        for consumer, (of, name) in known:
            if consumer is not but and name == subscription and _share(of, topic):
                consumer._subscription_moved()  # noqa: SLF001 - their own business


def _share(one: Any, other: Any) -> bool:
    """Tell whether two consumers may have a topic in common."""
    if isinstance(one, re.Pattern) or isinstance(other, re.Pattern):
        return True
    return not _names(one).isdisjoint(_names(other))


def _names(topic: Any) -> set[str]:
    topics = [topic] if isinstance(topic, str) else topic
    return {topic_label(logical(each)) for each in topics}


#: Of this process.
MOVES = Moves()

"""The backlogs over time: the broker is asked at intervals, and the answers are kept in memory."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from pulsar_retry.console.chart import Sample
from pulsar_retry.ops.overview import LetterTopic
from pulsar_retry.ops.polling import Polling

_log = logging.getLogger("pulsar_retry")

#: How many samples of a topic are kept: at intervals of 15 s, two hours.
MOST = 480


class Depths(Polling):
    """The backlogs of the letter topics of some namespaces. Thread-safe.

    They are lost when the process ends. Use the broker's monitoring for long periods.
    """

    def __init__(
        self,
        ask: Callable[[str], Iterable[LetterTopic]],
        namespaces: Sequence[str],
        interval: float = 15.0,
    ) -> None:
        """Prepare; nothing is asked yet.

        Args:
            ask: Returns the letter topics of a namespace.
            namespaces: The namespaces.
            interval: Seconds between two samples; more if a request takes long.
        """
        super().__init__(self._try, interval, "pulsar-retry-depths")
        self._ask, self._namespaces = ask, namespaces
        self._samples: dict[str, deque[Sample]] = {}
        self._lock = threading.Lock()

    def of(self, topic: str) -> list[Sample]:
        """Return the samples of a topic, the oldest first."""
        with self._lock:
            return list(self._samples.get(topic, ()))

    def sample(self) -> None:
        """Ask once; samples of topics that do not exist any more are removed."""
        found = [each for namespace in self._namespaces for each in self._ask(namespace)]
        now = time.time()
        with self._lock:
            known = self._samples
            self._samples = {
                each.topic: known.get(each.topic, deque(maxlen=MOST)) for each in found
            }
            for each in found:
                self._samples[each.topic].append((now, each.backlog))

    def _try(self) -> None:
        try:
            self.sample()
        except Exception as error:  # noqa: BLE001 - it may work the next time
            _log.debug("the numbers of waiting letters could not be read: %s", error)

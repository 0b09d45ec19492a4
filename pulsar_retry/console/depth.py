"""How many letters waited when: asked for now and then, and kept in memory."""

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

#: Samples of a topic: at 15 s apart, two hours.
MOST = 480


class Depths(Polling):
    """The depths of the letter topics of some namespaces. Thread-safe.

    They are gone when the process ends: for more than a glance there is the broker's monitoring.
    """

    def __init__(
        self,
        ask: Callable[[str], Iterable[LetterTopic]],
        namespaces: Sequence[str],
        interval: float = 15.0,
    ) -> None:
        """Prepare; nothing is asked.

        Args:
            ask: Returns the letter topics of a namespace.
            namespaces: Which.
            interval: Seconds between two samples, more where asking takes long.
        """
        super().__init__(self._try, interval, "pulsar-retry-depths")
        self._ask, self._namespaces = ask, namespaces
        self._samples: dict[str, deque[Sample]] = {}
        self._lock = threading.Lock()

    def of(self, topic: str) -> list[Sample]:
        """Return what is known of a topic, the oldest first."""
        with self._lock:
            return list(self._samples.get(topic, ()))

    def sample(self) -> None:
        """Ask once; a topic that is gone is forgotten."""
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
        except Exception as error:  # noqa: BLE001 - the next time it may work
            _log.debug("the depths are not known: %s", error)

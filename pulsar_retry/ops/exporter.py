"""Exports to Prometheus how many letters wait, and since when. Consumes nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence

import attrs
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pulsar_retry.observe.metrics import LETTER_METRICS, PREFIX, family_of
from pulsar_retry.ops.overview import LetterTopic
from pulsar_retry.ops.polling import Polling

_log = logging.getLogger("pulsar_retry")


@attrs.frozen
class _Answer:
    """The last answer about a namespace.

    Attributes:
        found: The letter topics; None if the broker has not answered.
        at: When it was asked, by the monotonic clock.
    """

    found: tuple[LetterTopic, ...] | None
    at: float


class LetterCollector(Polling, Collector):
    """Collects how many letters wait in namespaces, and since when. Thread-safe.

    The broker is asked at intervals, however often Prometheus scrapes. If the broker does not
    answer, nothing is shown, because an old value would hide the problem.
    """

    def __init__(
        self,
        ask: Callable[[str], Sequence[LetterTopic]],
        namespaces: Sequence[str],
        interval: float = 15.0,
    ) -> None:
        """Prepare the collector; nothing is asked yet.

        Args:
            ask: Returns the letter topics of a namespace.
            namespaces: The namespaces.
            interval: Seconds between two requests; more if a request takes long.
        """
        super().__init__(self.ask, interval, "pulsar-retry-letter-topics")
        self._ask, self._namespaces = ask, namespaces
        self._answers: dict[str, _Answer] = {}

    def ask(self) -> None:
        """Ask once for each namespace."""
        for namespace in self._namespaces:
            began = time.monotonic()
            found: tuple[LetterTopic, ...] | None = None
            try:
                found = tuple(self._ask(namespace))
            except Exception as error:  # noqa: BLE001 - it may work the next time
                _log.warning("the letter topics of %s could not be read: %s", namespace, error)
            self._answers[namespace] = _Answer(found, began)

    def describe(self) -> list[Metric]:
        """Return the metrics without values."""
        return [family_of(spec) for spec in LETTER_METRICS]

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with the last values."""
        families = {family.name.removeprefix(PREFIX): family for family in self.describe()}

        def add(name: str, labels: Sequence[str], value: float) -> None:
            families[name].add_metric(labels, value)  # type: ignore[attr-defined]  # a gauge's

        now = time.monotonic()
        for namespace, answer in list(self._answers.items()):
            add("exporter_up", [namespace], answer.found is not None)
            for each in answer.found or ():
                kind = "dlq" if each.kind == "dead_letter" else "retry"
                labels = [each.main_topic or "", each.subscription or "", each.topic]
                waits = each.oldest_age_seconds
                age = 0.0 if waits is None else waits + now - answer.at
                add(f"{kind}_backlog", labels, each.backlog)
                add(f"{kind}_oldest_age_seconds", labels, age)
        yield from families.values()

"""Exports to Prometheus how many letters wait, and what is due. Consumes nothing."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Generic, TypeVar

import attrs
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pulsar_retry.observe.metrics import DUE_METRICS, LETTER_METRICS, PREFIX, Spec, family_of
from pulsar_retry.ops.due import DueBacklog
from pulsar_retry.ops.overview import LetterTopic
from pulsar_retry.ops.polling import Polling

_log = logging.getLogger("pulsar_retry")

_Found = TypeVar("_Found")

#: Takes the name of a metric, its labels and its value.
_Add = Callable[[str, Sequence[str], float], None]


@attrs.frozen
class _Answer(Generic[_Found]):
    """The last answer about a namespace.

    Attributes:
        found: What was found; None if the broker has not answered.
        at: When it was asked, by the monotonic clock.
    """

    found: tuple[_Found, ...] | None
    at: float


class _NamespaceCollector(Polling, Collector, Generic[_Found]):
    """Collects what a broker says about namespaces. Thread-safe.

    The broker is asked at intervals, however often Prometheus scrapes. If the broker does not
    answer, nothing is shown, because an old value would hide the problem.
    """

    metrics: ClassVar[tuple[Spec, ...]]
    up: ClassVar[str]
    what: ClassVar[str]

    def __init__(
        self,
        ask: Callable[[str], Sequence[_Found]],
        namespaces: Sequence[str],
        interval: float = 15.0,
    ) -> None:
        """Prepare the collector; nothing is asked yet.

        Args:
            ask: Returns what is found in a namespace.
            namespaces: The namespaces.
            interval: Seconds between two requests; more if a request takes long.
        """
        super().__init__(self.ask, interval, f"pulsar-retry-{self.what}")
        self._ask, self._namespaces = ask, namespaces
        self._answers: dict[str, _Answer[_Found]] = {}

    def ask(self) -> None:
        """Ask once for each namespace."""
        for namespace in self._namespaces:
            began = time.monotonic()
            found: tuple[_Found, ...] | None = None
            try:
                found = tuple(self._ask(namespace))
            except Exception as error:  # noqa: BLE001 - it may work the next time
                _log.warning("the %s of %s could not be read: %s", self.what, namespace, error)
            self._answers[namespace] = _Answer(found, began)

    def describe(self) -> list[Metric]:
        """Return the metrics without values."""
        return [family_of(spec) for spec in self.metrics]

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with the last values."""
        families = {family.name.removeprefix(PREFIX): family for family in self.describe()}

        def add(name: str, labels: Sequence[str], value: float) -> None:
            families[name].add_metric(labels, value)  # type: ignore[attr-defined]  # a gauge's

        now = time.monotonic()
        for namespace, answer in list(self._answers.items()):
            add(self.up, [namespace], answer.found is not None)
            for each in answer.found or ():
                self._show(each, now - answer.at, add)
        yield from families.values()

    @abstractmethod
    def _show(self, found: _Found, age: float, add: _Add) -> None:
        """Add the values of something that was found *age* seconds ago."""


class LetterCollector(_NamespaceCollector[LetterTopic]):
    """Collects how many letters wait, and since when. Thread-safe."""

    metrics, up, what = LETTER_METRICS, "exporter_up", "letter topics"

    def _show(self, found: LetterTopic, age: float, add: _Add) -> None:
        kind = "dlq" if found.kind == "dead_letter" else "retry"
        labels = [found.main_topic or "", found.subscription or "", found.topic]
        waits = found.oldest_age_seconds
        add(f"{kind}_backlog", labels, found.backlog)
        add(f"{kind}_oldest_age_seconds", labels, 0.0 if waits is None else waits + age)


class DueCollector(_NamespaceCollector[DueBacklog]):
    """Collects what is due for each subscription. Thread-safe."""

    metrics, up, what = DUE_METRICS, "due_exporter_up", "due backlogs"

    def _show(self, found: DueBacklog, age: float, add: _Add) -> None:  # noqa: ARG002 - see the base
        labels = [found.topic or "", found.subscription, found.part]
        add("backlog", labels, found.backlog)
        add("not_due_backlog", labels, found.not_due)
        add("due_backlog", labels, found.due)
        add("due_backlog_error", labels, found.error)

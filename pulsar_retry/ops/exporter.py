"""Shows Prometheus how many letters wait, and since when."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import attrs
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pulsar_retry.observe.metrics import LETTER_METRICS, PREFIX, family_of
from pulsar_retry.ops.overview import LetterTopic


@attrs.frozen
class _Answer:
    """The last answer about a namespace.

    Attributes:
        found: The letter topics; None if the broker has not answered.
        at: When it came, by the monotonic clock.
    """

    found: Sequence[LetterTopic] | None
    at: float


class LetterCollector(Collector):
    """Collects how many letters wait in namespaces, and since when. Thread-safe.

    It shows the last answers of the broker, however often Prometheus scrapes. If the broker has not
    answered, nothing is shown, because an old value would hide the problem.
    """

    def __init__(self) -> None:
        self._answers: dict[str, _Answer] = {}

    def show(self, namespace: str, found: Sequence[LetterTopic] | None) -> None:
        """Show the letter topics of a namespace; None: the broker has not answered."""
        self._answers[namespace] = _Answer(found, time.monotonic())

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

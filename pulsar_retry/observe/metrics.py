"""The metrics for Prometheus: their names, and how they are made from the counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import attrs
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from pulsar_retry.observe.counting import (
    ACKNOWLEDGED,
    BOOK,
    DEAD_LETTERED,
    LANE,
    LETTER,
    NACK,
    NACKED,
    RETRIED,
    Book,
    Buckets,
)

PREFIX = "pulsar_retry_"

#: The labels of a subscription's metrics.
LABELS = ("topic", "subscription")


@attrs.frozen
class Spec:
    """A metric.

    Attributes:
        name: Its name without the prefix, and without the ``_total`` of a counter.
        kind: Its type.
        text: Its help text.
        label: Its label in addition to those of *base*; None if there is none.
        values: Values of that label that exist from the start with 0. A value that first appears
            with 1 would show no increase.
        together: How the gauges of several consumers are combined.
        base: The other labels.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    label: str | None = None
    values: tuple[str, ...] = ()
    together: Literal["sum", "max"] = "sum"
    base: tuple[str, ...] = LABELS

    @property
    def full_name(self) -> str:
        """Its name in queries."""
        return PREFIX + self.name + ("_total" if self.kind == "counter" else "")

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its labels."""
        return self.base if self.label is None else (*self.base, self.label)


#: The metrics of consumers, subscribers and dispatchers.
METRICS = (
    Spec(
        "deliveries",
        "counter",
        "Deliveries, by outcome.",
        "outcome",
        (ACKNOWLEDGED, RETRIED, DEAD_LETTERED, NACKED),
    ),
    Spec(
        "retries",
        "counter",
        "Retries of messages, by kind.",
        "kind",
        (LETTER, NACK, LANE),
    ),
    Spec("dead_letters", "counter", "Messages that went to the dead-letter topic.", "reason"),
    Spec(
        "settle_failures",
        "counter",
        "Messages that could not be handed on; they are redelivered.",
        "error_type",
        ("LetterPublishError", "AcknowledgeError"),
    ),
    Spec(
        "attempts",
        "histogram",
        "The attempt at which a message was finished: acknowledged, dropped or dead-lettered.",
    ),
    Spec(
        "critical_seconds",
        "histogram",
        "Time from the first publication of a message until it was finished.",
    ),
    Spec("inflight", "gauge", "Messages that a subscriber holds."),
    Spec("load_ratio", "gauge", "The used share of the limits of flow control.", together="max"),
    Spec("lease_seconds", "gauge", "The current length of a lease.", together="max"),
    Spec(
        "abandoned_handlers",
        "gauge",
        "Handlers that have not returned although their lease has expired.",
    ),
    Spec(
        "degraded",
        "gauge",
        "Subscribers that run but have a problem, which their health describes.",
    ),
    Spec(
        "subscriptions_failed",
        "counter",
        "Subscriptions that an error has ended.",
        "error_type",
    ),
    Spec("letters_inflight", "gauge", "Letters that have no receipt yet."),
    Spec("nacks_pending", "gauge", "Nacked messages that wait for their delay."),
    Spec("unsettled", "gauge", "Messages received, neither settled nor redelivered yet."),
    Spec("push_requests", "counter", "Requests of a dispatcher, by result.", "code"),
    Spec("push_acked", "counter", "Messages that the endpoint acknowledged."),
    Spec("push_nacked", "counter", "Deliveries that the endpoint did not acknowledge."),
    Spec("push_latency_seconds", "histogram", "Time from a request to its answer."),
    Spec("push_window", "gauge", "Requests that may be outstanding."),
    Spec("push_outstanding", "gauge", "Requests that are outstanding."),
    Spec(
        "push_backoff_seconds",
        "gauge",
        "Delay between two sends; 0 if there is no backoff.",
        together="max",
    ),
    Spec("push_paused", "gauge", "Dispatchers that are paused."),
)

#: The metrics of `pulsar-retry metrics`, which asks the broker.
LETTER_METRICS = (
    Spec("dlq_backlog", "gauge", "Letters in a dead-letter topic.", "letter_topic"),
    Spec(
        "dlq_oldest_age_seconds",
        "gauge",
        "How long the oldest dead letter has been waiting; 0 if there is none.",
        "letter_topic",
    ),
    Spec("retry_backlog", "gauge", "Letters in a retry topic.", "letter_topic"),
    Spec(
        "retry_oldest_age_seconds",
        "gauge",
        "How long the oldest retry letter has been waiting; 0 if there is none.",
        "letter_topic",
    ),
    Spec(
        "exporter_up",
        "gauge",
        "Whether the broker has answered for a namespace.",
        base=("namespace",),
    ),
)


class CountersCollector(Collector):
    """Lets Prometheus read the counters of this process at each scrape. Thread-safe."""

    def __init__(self, book: Book = BOOK) -> None:
        self._book = book

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values. A registry gets their names without a scrape."""
        return [family_of(spec) for spec in METRICS]

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its present values."""
        all_counters = self._book.all_counters()
        gauges = {id(each): each.gauges() for each in all_counters}
        for spec in METRICS:
            family = family_of(spec)
            for counters in all_counters:
                own = [counters.topic, counters.subscription]
                match family:
                    case CounterMetricFamily():
                        counts = dict.fromkeys(spec.values, 0) | counters.counts(spec.name)
                        for value, count in sorted(counts.items()):
                            labels = own if spec.label is None else [*own, value]
                            family.add_metric(labels, count)
                    case HistogramMetricFamily():
                        _add(family, own, counters.buckets(spec.name))
                    case GaugeMetricFamily():
                        values = [
                            each[spec.name] for each in gauges[id(counters)] if spec.name in each
                        ]
                        if values:
                            family.add_metric(own, (max if spec.together == "max" else sum)(values))
            yield family


def family_of(spec: Spec) -> Metric:
    """Return a metric without values."""
    make = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }[spec.kind]
    family: Metric = make(PREFIX + spec.name, spec.text, labels=spec.labels)
    return family


def _add(family: HistogramMetricFamily, labels: list[str], buckets: Buckets | None) -> None:
    if buckets is None:
        return
    total, rows = 0, []
    for bound, count in zip((*buckets.bounds, float("inf")), buckets.counts, strict=True):
        total += count
        rows.append((_bound(bound), total))
    family.add_metric(labels, rows, buckets.sum)


def _bound(value: float) -> str:
    """Return a bound as text, as prometheus_client writes it."""
    return "+Inf" if value == float("inf") else str(value)

"""The metrics for Prometheus: their names, and how they are made from the counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import attrs
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pulsar_retry.observe.counting import ACKNOWLEDGED, COUNTERS, AllCounters, Counters
from pulsar_retry.observe.watch import DEAD_LETTERED, NACKED, RETRIED

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
    kind: Literal["counter", "gauge"]
    text: str
    label: str | None = None
    values: tuple[str, ...] = ()
    together: Literal["sum", "max"] = "sum"
    base: tuple[str, ...] = LABELS

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
        ("letter", "nack", "lane"),
    ),
    Spec("dead_letters", "counter", "Messages that went to the dead-letter topic.", "reason"),
    Spec(
        "settle_failures",
        "counter",
        "Messages that could not be handed on; they are redelivered.",
        "error_type",
        ("LetterPublishError", "AcknowledgeError"),
    ),
    Spec("inflight", "gauge", "Messages that a subscriber holds."),
    Spec("load_ratio", "gauge", "The used share of the limits of flow control.", together="max"),
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
    Spec("push_window", "gauge", "Requests that may be outstanding."),
    Spec(
        "push_latency_seconds",
        "gauge",
        "Mean time of about the last 1000 acknowledged requests.",
        together="max",
    ),
    Spec("push_outstanding", "gauge", "Requests that are outstanding."),
    Spec(
        "push_backoff_seconds",
        "gauge",
        "Delay between two sends; 0 if there is no backoff.",
        together="max",
    ),
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

    def __init__(self, counters: AllCounters = COUNTERS) -> None:
        self._counters = counters

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values. A registry gets their names without a scrape."""
        return [family_of(spec) for spec in METRICS]

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its present values."""
        found = [(counters, counters.gauges()) for counters in self._counters.all()]
        for spec in METRICS:
            family = family_of(spec)
            for counters, gauges in found:
                _add(family, spec, counters, gauges)
            yield family


def family_of(spec: Spec) -> CounterMetricFamily | GaugeMetricFamily:
    """Return a metric without values."""
    make = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    return make(PREFIX + spec.name, spec.text, labels=spec.labels)


def _add(
    family: CounterMetricFamily | GaugeMetricFamily,
    spec: Spec,
    counters: Counters,
    gauges: Sequence[Mapping[str, float]],
) -> None:
    """Add the values of a subscription to a metric."""
    own = [counters.topic, counters.subscription]
    if spec.kind == "counter":
        counts = dict.fromkeys(spec.values, 0) | counters.counts(spec.name)
        for value, count in sorted(counts.items()):
            family.add_metric(own if spec.label is None else [*own, value], count)
    elif values := [each[spec.name] for each in gauges if spec.name in each]:
        family.add_metric(own, (max if spec.together == "max" else sum)(values))

"""What a dispatcher has done, for people and for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pulsar_retry.push.pacer import Pace
from pulsar_retry.push.poster import Answer

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)


class Tally:
    """The metrics of one dispatcher, in a registry of its own. Thread-safe.

    Attributes:
        registry: ``pulsar_retry_push_requests_total`` by code (a status, ``timeout``,
            ``connection``, ``refused``, ``tls`` or ``unsent``), ``…_acked_total``,
            ``…_nacked_total``, ``…_latency_seconds``, ``…_window``, ``…_outstanding``,
            ``…_backoff_seconds``, ``…_paused`` and ``…_in_hand``, all labelled by subscription.
    """

    def __init__(self, subscription: str) -> None:
        self.registry = CollectorRegistry()
        self._subscription = subscription
        self._requests = Counter(
            "pulsar_retry_push_requests",
            "Requests by what became of them.",
            ["subscription", "code"],
            registry=self.registry,
        )
        labels = ["subscription"]
        self._acked = Counter(
            "pulsar_retry_push_acked",
            "Messages that were acknowledged.",
            labels,
            registry=self.registry,
        ).labels(subscription)
        self._nacked = Counter(
            "pulsar_retry_push_nacked",
            "Deliveries that were not acknowledged.",
            labels,
            registry=self.registry,
        ).labels(subscription)
        self._latency = Histogram(
            "pulsar_retry_push_latency_seconds",
            "From a request to its answer.",
            labels,
            registry=self.registry,
            buckets=_BUCKETS,
        ).labels(subscription)
        self._by_code: dict[str, Counter] = {}

    def watch(self, pace: Callable[[], Pace], in_hand: Callable[[], int]) -> None:
        """Have the gauges ask these when they are read."""
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "window": ("Requests that may be outstanding.", lambda: pace().window),
            "outstanding": ("Requests that are outstanding.", lambda: pace().outstanding),
            "backoff_seconds": ("From one send to the next; 0: none.", lambda: pace().delay),
            "paused": ("1 while it is paused.", lambda: pace().paused),
            "in_hand": ("Messages received and not settled.", in_hand),
        }
        for name, (text, ask) in gauges.items():
            Gauge(
                f"pulsar_retry_push_{name}", text, ["subscription"], registry=self.registry
            ).labels(self._subscription).set_function(ask)

    def answered(self, answer: Answer, latency: float) -> None:
        """Count a request."""
        self._count(answer.code)
        self._latency.observe(latency)
        (self._acked if answer.is_ack else self._nacked).inc()

    def unsent(self) -> None:
        """Count a message of which no request could be made."""
        self._count("unsent")
        self._nacked.inc()

    def _count(self, code: str) -> None:
        counter = self._by_code.get(code)
        if counter is None:
            counter = self._by_code[code] = self._requests.labels(self._subscription, code)
        counter.inc()

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)

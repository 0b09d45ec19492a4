"""The metrics of a dispatcher, for people and for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from pulsar_retry.observe.counting import Counters
from pulsar_retry.observe.serving import own_registry
from pulsar_retry.push.http import Answer
from pulsar_retry.push.pacing.pacer import Pace

#: The upper bounds of the histogram's buckets, in seconds.
_LATENCY_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)


class PushMetrics:
    """The metrics of one dispatcher's requests, in addition to its subscriber's. Thread-safe.

    Attributes:
        registry: ``pulsar_retry_push_requests_total`` by code (a status, ``timeout``,
            ``connection``, ``refused``, ``tls`` or ``unsent``), ``…_acked_total``,
            ``…_nacked_total``, ``…_latency_seconds``, ``…_window``, ``…_outstanding``,
            ``…_backoff_seconds`` and ``…_paused``, all labelled by topic and subscription; and the
            other metrics of this process.
    """

    def __init__(self, counters: Counters, pace: Callable[[], Pace]) -> None:
        """Count in *counters*; the gauges read *pace*."""
        self.registry: CollectorRegistry = own_registry()
        self._counters = counters
        self._pace = pace
        counters.attach(self)

    def end(self) -> None:
        """Remove the gauges; counters stay."""
        self._counters.detach(self)

    def gauges(self) -> dict[str, float]:
        """Return the current values."""
        pace = self._pace()
        return {
            "push_window": float(pace.window),
            "push_outstanding": float(pace.outstanding),
            "push_backoff_seconds": pace.delay,
            "push_paused": float(pace.paused),
        }

    def answered(self, answer: Answer, latency: float) -> None:
        """Count a request with its result."""
        self._counters.count("push_requests", answer.code)
        self._counters.count("push_acked" if answer.is_ack else "push_nacked")
        self._counters.observe("push_latency_seconds", _LATENCY_BOUNDS, latency)

    def unsent(self) -> None:
        """Count a message for which no request could be made."""
        self._counters.count("push_requests", "unsent")
        self._counters.count("push_nacked")

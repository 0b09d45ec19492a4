"""The metrics of a dispatcher, for people and for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from pulsar_retry.observe.counting import LATENCY_BOUNDS, OTHER, Counters
from pulsar_retry.observe.serving import own_registry
from pulsar_retry.push.http.poster import Answer
from pulsar_retry.push.pacing.pacer import Pace


class PushMetrics:
    """The metrics of one dispatcher's requests, in addition to its subscriber's. Thread-safe.

    Attributes:
        registry: ``pulsar_retry_push_requests_total`` by code (a status, ``timeout``,
            ``connection``, ``refused``, ``tls`` or ``unsent``), ``…_acked_total``,
            ``…_nacked_total``, ``…_latency_seconds``, ``…_window``, ``…_outstanding``,
            ``…_backoff_seconds`` and ``…_paused``, all labelled by topic and subscription; and the
            other metrics of this process.
    """

    def __init__(self, counters: Counters) -> None:
        self.registry: CollectorRegistry = own_registry()
        self._counters = counters
        self._pace: Callable[[], Pace] | None = None
        with counters.lock:
            self._requests = counters.tally("push_requests")
            self._acked, self._nacked = counters.tally("push_acked"), counters.tally("push_nacked")
            self._latency = counters.histogram("push_latency_seconds", LATENCY_BOUNDS)
        counters.attach(self)

    def watch(self, pace: Callable[[], Pace]) -> None:
        """Set the function that the gauges read."""
        self._pace = pace

    def end(self) -> None:
        """Remove the gauges; counters stay."""
        self._counters.detach(self)

    def gauges(self) -> dict[str, float]:
        """Return the current values."""
        if self._pace is None:
            return {}
        pace = self._pace()
        return {
            "push_window": float(pace.window),
            "push_outstanding": float(pace.outstanding),
            "push_backoff_seconds": pace.delay,
            "push_paused": float(pace.paused),
        }

    def answered(self, answer: Answer, latency: float) -> None:
        """Count a request with its result."""
        code, outcome = answer.code, self._acked if answer.is_ack else self._nacked
        with self._counters.lock:
            self._requests.add(code)
            self._latency.add(latency)
            outcome.add(OTHER)

    def unsent(self) -> None:
        """Count a message for which no request could be made."""
        with self._counters.lock:
            self._requests.add("unsent")
            self._nacked.add(OTHER)

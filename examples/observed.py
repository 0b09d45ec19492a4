"""What you can observe: metrics, hooks and spans of a subscriber, some of whose messages fail.

Spans need `pip install "pulsar-retry[otel]" opentelemetry-sdk`. Without these packages, the rest
works the same.
"""

from __future__ import annotations

import os
import threading
import urllib.request
import uuid
from typing import Any

import pulsar

import pulsar_retry as pr

ORDERS = ("tea", "lamp", "free")

topic = f"orders-{uuid.uuid4().hex[:8]}"
settled = threading.Semaphore(0)


def trace_to(spans: list[Any]) -> None:
    """Collect spans in a list; in production, use your exporter here."""
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import (
            SimpleSpanProcessor,
            SpanExporter,
            SpanExportResult,
        )
    except ModuleNotFoundError:
        return

    class Collector(SpanExporter):
        def export(self, ended: Any) -> SpanExportResult:
            spans.extend(ended)
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Collector()))
    trace.set_tracer_provider(provider)


def handle(message: pulsar.Message) -> None:
    """Charge for an order."""
    order = message.data().decode()
    if order == "free":
        raise pr.Reject("invalid-price")
    if order == "lamp" and pr.attempt_of(message) == 1:
        raise TimeoutError("no answer")
    settled.release()


def dead(event: pr.SettleEvent) -> None:
    """Report a dead letter."""
    print(f"dead at attempt {event.attempt}: {event.reason}")
    settled.release()


spans: list[Any] = []
trace_to(spans)
hooks = pr.Hooks(
    on_retry=lambda event: print(f"retried after attempt {event.attempt}: {event.error!r}"),
    on_dead_letter=dead,
)
quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
url = os.environ.get("PULSAR_SERVICE_URL", "pulsar://localhost:6650")

with pr.start_metrics_server(0) as server, pr.Client(url, logger=quiet) as client:
    policy = pr.RetryPolicy(max_attempts=3, backoff=pr.Immediate(), jitter="none")
    with client.subscriber(topic, "billing", handle, retry_policy=policy, hooks=hooks):
        producer = client.create_producer(topic)
        for order in ORDERS:
            producer.send(order.encode())
        for _ in ORDERS:
            settled.acquire(timeout=30)
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics").read().decode()

for line in metrics.splitlines():
    is_shown = line.startswith(("pulsar_retry_deliveries", "pulsar_retry_dead"))
    if is_shown and not line.endswith(" 0.0"):
        print(line.replace(topic, "orders"))
for span in sorted(spans, key=lambda each: each.start_time):
    links = f", linked to {len(span.links)}" if span.links else ""
    print(f"span {span.name.replace(topic, 'orders')}{links}")

"""Metrics, spans and hooks. Consumers, subscribers and dispatchers all use them."""

import typing

from pulsar_retry import _lazy

if typing.TYPE_CHECKING:
    from pulsar_retry.observe.hooks import Hooks, SettleEvent
    from pulsar_retry.observe.serving import MetricsServer, register_metrics, start_metrics_server
    from pulsar_retry.observe.tracing import process_span
else:
    __getattr__ = _lazy.getattr_of(__name__)  # what shows metrics needs an HTTP server

__all__ = [
    "Hooks",
    "MetricsServer",
    "SettleEvent",
    "process_span",
    "register_metrics",
    "start_metrics_server",
]

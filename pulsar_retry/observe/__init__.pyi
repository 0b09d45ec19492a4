from pulsar_retry.observe.hooks import Hooks as Hooks
from pulsar_retry.observe.serving import MetricsServer as MetricsServer
from pulsar_retry.observe.serving import register_metrics as register_metrics
from pulsar_retry.observe.serving import start_metrics_server as start_metrics_server
from pulsar_retry.observe.tracing import process_span as process_span
from pulsar_retry.observe.watch import SettleEvent as SettleEvent

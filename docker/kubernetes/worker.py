"""A worker to start from. It is configured by the environment, and serves metrics and probes.

docs/production.md has a handler for it that calls an HTTP service, and tests.

PULSAR_SERVICE_URL, PULSAR_TOKEN_FILE and the other variables of the command say how to connect.
"""

from __future__ import annotations

import logging
import os

import pulsar

import pulsar_retry as pr

TOPIC = os.environ.get("TOPIC", "orders")
SUBSCRIPTION = os.environ.get("SUBSCRIPTION", "billing")
PORT = int(os.environ.get("METRICS_PORT", "9464"))
#: The address for Prometheus and for probes: everything, in a container.
ADDRESS = os.environ.get("METRICS_ADDRESS", "127.0.0.1")
#: Seconds that messages in hand have to be settled after SIGTERM. Give the process a little more.
DRAIN_TIMEOUT = 30.0

_log = logging.getLogger("worker")


def handle(message: pulsar.Message) -> None:
    """Handle a message; returning acknowledges it, an error retries it."""
    _log.info("handled %s", message.message_id())


def main() -> None:
    """Run until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    with pr.replay.Cluster.from_environment().client(check=False) as client:
        subscriber = client.subscriber(
            TOPIC,
            SUBSCRIPTION,
            handle,
            retry_policy=pr.RetryPolicy(max_attempts=5, backoff=pr.Exponential(10, 600)),
            concurrency=10,
        )
        with pr.start_metrics_server(PORT, ADDRESS, health=subscriber):
            report = subscriber.run(timeout=DRAIN_TIMEOUT)
    _log.info("%d acknowledged, %d retried", report.acknowledged, report.retried)


if __name__ == "__main__":
    main()

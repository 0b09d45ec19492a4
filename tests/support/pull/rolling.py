"""A worker with probes and a ledger, which a test restarts: URL, topic, ledger, port."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pulsar

import pulsar_retry as pr
from support.faults.ledger import Ledger, number_of

SUBSCRIPTION = "billing"


class Worker:
    """A process of this program.

    Attributes:
        process: The process.
    """

    def __init__(self, url: str, topic: str, ledger: Path, port: int) -> None:
        """Start it."""
        self._probe = f"http://127.0.0.1:{port}"
        arguments = [url, topic, str(ledger), str(port)]
        tests = str(Path(__file__).parents[2])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.pull.rolling", *arguments],
            env={**os.environ, "PYTHONPATH": tests},
        )

    def is_ready(self) -> bool:
        """Ask as Kubernetes does."""
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"{self._probe}/readyz", timeout=30) as answer:
                return bool(json.load(answer)["ready"])
        except OSError:  # it does not listen yet, or answers 503
            return False

    def end(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self.process.terminate()
        return self.process.wait(120)


def main() -> None:
    """Handle messages until SIGTERM; one of ten fails at its first attempt."""
    url, topic, path, port = sys.argv[1:]
    ledger = Ledger(path)

    def handle(message: Any) -> None:
        time.sleep(0.005)
        if number_of(message) % 10 == 1 and pr.attempt_of(message) == 1:
            ledger.enter("retried", message)
            raise TimeoutError("no answer")
        ledger.enter("processed", message)

    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(url, operation_timeout_seconds=90, logger=quiet) as client:
        policy = pr.RetryPolicy(max_attempts=100, backoff=pr.Fixed(0.5))
        subscriber = client.subscriber(topic, SUBSCRIPTION, handle, retry_policy=policy)
        with pr.start_metrics_server(int(port), health=subscriber):
            subscriber.run()


if __name__ == "__main__":
    main()

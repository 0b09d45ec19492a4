"""A program that is killed by one of its messages, while it has others in hand.

Its arguments: URL, topic, the folder of claims, and a file for the attempts.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import pulsar

import pulsar_retry as pr

SUBSCRIPTION = "billing"

#: How many messages are in hand together.
CONCURRENCY = 6


def main() -> None:
    """Handle messages until one of them kills this process, or SIGTERM comes."""
    url, topic, folder, path = sys.argv[1:]
    log = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def handle(message: Any) -> None:
        os.write(log, message.data() + b"\n")
        if message.data() == b"killer":
            time.sleep(0.5)  # meanwhile the other messages are started
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1.5)

    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(url, operation_timeout_seconds=90, logger=quiet) as client:
        client.subscriber(
            topic,
            SUBSCRIPTION,
            handle,
            concurrency=CONCURRENCY,
            quarantine=pr.Quarantine(store=pr.FileClaims(folder)),
        ).run()


if __name__ == "__main__":
    main()

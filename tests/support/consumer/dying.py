"""A program that hands messages off and is killed before its acknowledgements are sent.

Its arguments: URL, topic, the number of messages, the letters' delay in seconds.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pulsar

import pulsar_retry as pr

sys.path.append(str(Path(__file__).parents[2]))  # the file is started as a program

from support.reading import SOON, SUBSCRIPTION


def main() -> None:
    """Hand the messages off, wait for the receipts, and die."""
    url, topic, count, delay = sys.argv[1:]
    consumer = pr.Client(
        url,
        operation_timeout_seconds=90,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    ).subscribe(
        topic,
        SUBSCRIPTION,
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        enable_retry=True,
    )
    futures = [
        consumer.reconsume_later_async(consumer.receive(SOON), delay=float(delay))
        for _ in range(int(count))
    ]
    for future in futures:
        future.result()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()

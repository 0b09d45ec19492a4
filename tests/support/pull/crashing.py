"""A program that one of its messages kills, and that keeps nothing on its disk.

Its arguments: URL, topic, the type of the handler, and a file for the attempts.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import pulsar

import pulsar_retry as pr

SUBSCRIPTION = "billing"

#: How many messages are in hand together.
CONCURRENCY = 5

#: Short, because no connection is lost here.
CLAIMS = pr.TopicClaims(grace=1)


def main() -> None:
    """Handle messages until one of them kills this process, or SIGTERM comes."""
    url, topic, kind, path = sys.argv[1:]
    log = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def note(message: Any) -> bytes:
        data: bytes = message.data()
        os.write(log, data + b"\n")
        return data

    def handle(message: Any) -> None:
        if note(message).startswith(b"poison"):
            time.sleep(0.1)  # meanwhile other messages are handled
            os._exit(9)
        time.sleep(0.05)

    async def handle_async(message: Any) -> None:
        if note(message).startswith(b"poison"):
            await asyncio.sleep(0.1)
            os._exit(9)
        await asyncio.sleep(0.05)

    handler: Any = handle if kind == "threads" else handle_async
    with pr.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)) as client:
        client.subscriber(
            topic,
            SUBSCRIPTION,
            handler,
            concurrency=CONCURRENCY,
            prefetch=20,
            quarantine=pr.Quarantine(store=CLAIMS),
        ).run()


if __name__ == "__main__":
    main()

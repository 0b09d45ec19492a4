"""A program that one of its messages kills, and that keeps nothing on its disk.

Its arguments: URL, topic, the type of the handler, and a file for the attempts. A line of it has
"began", "ended" or "dies", the time, the process id, the payload, and the name that claims have for
the message.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import pulsar

import pulsar_retry as pr
from pulsar_retry.letters.facts import facts_of

SUBSCRIPTION = "billing"

#: How many messages are in hand together.
CONCURRENCY = 5

#: Short, because no connection is lost here.
CLAIMS = pr.TopicClaims(grace=1)


def main() -> None:
    """Handle messages until one of them kills this process, or SIGTERM comes."""
    url, topic, kind, path = sys.argv[1:]
    log = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def note(event: str, message: Any) -> bool:
        data, name = message.data().decode(), facts_of(message).chain
        os.write(log, f"{event} {time.time():.6f} {os.getpid()} {data} {name}\n".encode())
        return data.startswith("poison")

    def die(message: Any) -> None:
        note("dies", message)
        os._exit(9)

    def handle(message: Any) -> None:
        if note("began", message):
            time.sleep(0.1)  # meanwhile other messages are handled
            die(message)
        time.sleep(0.05)
        note("ended", message)

    async def handle_async(message: Any) -> None:
        if note("began", message):
            await asyncio.sleep(0.1)
            die(message)
        await asyncio.sleep(0.05)
        note("ended", message)

    handler: Any = handle if kind == "threads" else handle_async
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(url, operation_timeout_seconds=90, logger=quiet) as client:
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

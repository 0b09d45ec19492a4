"""Handlers that are `async def`: many wait at the same time, on one event loop.

The database is down at first. The subscriber's circuit breaker notices that everything fails: then
one message at a time is tried, and failures use up no attempts. So nothing is dead-lettered, and
messages wait at the broker until the outage is over.
"""

import asyncio
import os
import threading
import time
import uuid

import pulsar

import pulsar_retry as pr

URL = os.environ.get("PULSAR_SERVICE_URL", "pulsar://localhost:6650")
TOPIC = f"readings-{uuid.uuid4().hex[:8]}"
READINGS = 200
AT_A_TIME = 50

works = threading.Event()
done = threading.Semaphore(0)
running = 0
most = 0
failed = 0


async def store(_message: pulsar.Message) -> None:
    """Store a reading, if the database is available."""
    global running, most, failed  # noqa: PLW0603 - one loop, one thread
    running += 1
    most = max(most, running)
    await asyncio.sleep(0.01)
    running -= 1
    if not works.is_set():
        failed += 1
        raise ConnectionError("the database is down")
    done.release()


def main() -> None:
    """Send readings, and make the database available after the breaker has opened."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(URL, logger=logger) as client:
        producer = client.create_producer(TOPIC)
        for number in range(READINGS):
            producer.send(b"%d" % number)
        with client.subscriber(
            TOPIC,
            "archive",
            store,
            concurrency=AT_A_TIME,
            retry_policy=pr.RetryPolicy(max_attempts=3, backoff=pr.Fixed(5)),
        ) as subscriber:
            time.sleep(4)
            works.set()
            for _ in range(READINGS):
                done.acquire()
            subscriber.stop()
        report = subscriber.result()
    print(f"{report.acknowledged} stored, {report.dead_lettered} dead")
    print(f"more than one at a time: {most > 1}, but no more than asked: {most <= AT_A_TIME}")
    print(f"failed while the database was down: fewer than {READINGS}: {failed < READINGS}")


if __name__ == "__main__":
    main()

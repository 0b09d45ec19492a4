"""The order of a key, while the breaker is open for longer than a lane waits for the broker."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pulsar

import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker

KEYS, EACH = 7, 20

#: How often a message fails, by its last digit. Some of them fail for good.
FAILURES = (0, 9, 1, 0, 2, 9, 1, 0, 9, 1)


def test_the_order_outlasts_an_open_breaker() -> None:
    """What was left with the broker, and asked for, cannot come while nothing is received."""
    broker, failures = MemoryBroker(), Counter[bytes]()
    handled: list[bytes] = []

    def handle(message: Any) -> None:
        data = message.data()
        failures[data] += 1
        if failures[data] <= FAILURES[int(data) % 10]:
            raise TimeoutError
        handled.append(data)

    subscriber = broker.client().subscriber(
        "orders",
        "billing",
        handle,
        consumer_type=pulsar.ConsumerType.KeyShared,
        retry_policy=pr.RetryPolicy(max_attempts=4, backoff="fixed 1s"),
        lanes=pr.Lanes(max_parked=2),
        concurrency=3,
        breaker=pr.Breaker(minimum=5),
    )
    with subscriber:
        for number in range(KEYS * EACH):
            broker.send("orders", b"%d" % number, key=str(number % KEYS))
        broker.join("orders", "billing")
    broker.close()
    for key in range(KEYS):
        of_key = [number for number in map(int, handled) if number % KEYS == key]
        assert sorted(of_key) == of_key

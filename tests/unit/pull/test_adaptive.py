"""The number of handlers follows the capacity of what they use."""

from __future__ import annotations

from typing import Any

import pytest

import pulsar_retry as pr
from pulsar_retry.observe.watch import Watch
from pulsar_retry.pull.workers.adaptive import Governor
from pulsar_retry.runtime.clock import SYSTEM
from pulsar_retry.testing import MemoryBroker
from support.pull.storms import Service


def test_it_finds_the_capacity() -> None:
    """In virtual time: more threads for a wide service, and fewer when it gets narrow."""
    broker = MemoryBroker()
    clock = broker.clock
    services = {25: Service(clock.monotonic, width=25, seconds=0.1)}
    services[4] = Service(clock.monotonic, width=4, seconds=0.1)
    width = 25

    def handle(_message: Any) -> None:
        clock.sleep(services[width].request())

    client = broker.client()
    subscriber = client.subscriber("capacity", "billing", handle, concurrency="auto")
    limits = {}
    with subscriber:
        for width in (25, 4):
            for _ in range(1200 if width == 4 else 6000):
                broker.send("capacity", b"order")
            clock.advance(20)
            gauges = Watch.of("capacity", "billing").counters.gauges()
            (limits[width],) = (
                each["concurrency_limit"] for each in gauges if "concurrency_limit" in each
            )
            broker.join("capacity", "billing")
    assert 20 <= limits[25] <= 40
    assert 2 <= limits[4] <= 8
    broker.close()


def test_no_worker_rests_after_the_end() -> None:
    """A limit that falls when the subscriber has stopped keeps no thread, and no process, alive."""
    broker = MemoryBroker()

    def handle(_message: Any) -> None:
        broker.clock.sleep(20)
        raise TimeoutError

    subscriber = broker.client().subscriber("late", "billing", handle, concurrency="auto").start()
    for _ in range(10):
        broker.send("late", b"order")
    broker.clock.advance(10)
    subscriber.stop("abandon", 0)
    crew = subscriber._crew
    assert crew is not None
    broker.clock.advance(20)
    for thread in crew.threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in crew.threads)
    broker.close()


def test_a_worker_that_cannot_start_fails_no_message(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does it hide the handler's own error."""

    def changed() -> None:
        raise RuntimeError("can't start new thread")

    def handle(_message: Any) -> None:
        raise TimeoutError

    governor = Governor(200, changed, SYSTEM)
    handler = governor.timed(handle)
    for _ in range(100):
        with pytest.raises(TimeoutError):
            handler(None)
    assert governor.limit < 10
    assert "the number of workers could not be changed: can't start new thread" in caplog.messages


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"concurrency": "automatic"}, 'a whole number, 1 or more, or "auto"'),
        ({"concurrency": 0}, 'a whole number, 1 or more, or "auto"'),
        ({"concurrency": 5, "max_concurrency": 10}, 'None, because concurrency is not "auto"'),
        ({"concurrency": "auto", "max_concurrency": 0}, "max_concurrency=0"),
        ({"retry_budget": 5}, "retry_budget=5: expected a pulsar_retry.RetryBudget or None"),
    ],
)
def test_what_is_no_concurrency(arguments: dict[str, Any], text: str) -> None:
    """The error names the argument, the value and what is accepted."""
    broker = MemoryBroker()
    with pytest.raises(pr.ConfigError, match=text):
        broker.client().subscriber("orders", "billing", print, **arguments)
    broker.close()

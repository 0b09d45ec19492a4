"""Nacks at scale, beside pulsar-client's own timer: `tox run -e bench`.

Ids are nacked that the broker does not know, so that it has nothing to do: what is measured is the
client's part. A proxy notes when it asks for redeliveries. Nothing here asserts a speed.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable

import _pulsar
import pulsar
import pytest

import pulsar_retry as pr
from support.benchmarks.comparing import Stopwatch, compare
from support.brokers.redelivering import RedeliveryProxy

NACKS = 100_000
ROUNDS = 2
BATCH = 100
#: Seconds: more than it takes to nack them all.
DELAY = 10.0
#: Seconds after the last is due until all are asked for; what is not yet counts as so late.
GRACE = 6.0

SHARED = pulsar.ConsumerType.Shared
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)

#: Returns the delay to nack with, and when that is over.
When = Callable[[], tuple[float | None, float]]


#: Prints how many bytes the process has grown by for each of many nacks.
_GROW = """
import sys, _pulsar, pulsar, pulsar_retry as pr
url, kind, batch, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
client = eval(kind)(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
consumer = client.subscribe("memory", "bench", pulsar.ConsumerType.Shared)
before = resident()
for number in range(count):
    index = number % batch if batch > 1 else -1
    consumer.negative_acknowledge(_pulsar.MessageId(-1, 1_000_000, number // batch, index))
print((resident() - before) / count)
"""


def memory(broker, kind: str, batch: int) -> float:
    """Return the bytes that a pending nack takes in a process of its own."""
    arguments = [broker.service_url, kind, str(batch), str(NACKS)]
    done = subprocess.run(
        [sys.executable, "-c", _GROW, *arguments], check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def later() -> tuple[None, float]:
    """Nack with the consumer's own delay."""
    return None, time.monotonic() + DELAY


@pytest.mark.parametrize("batch", [1, BATCH], ids=["unbatched", "batched"])
@pytest.mark.usefixtures("report")
def test_nacks(benchmark, broker, namespace, batch):
    """Nacked as fast as it goes, with one delay, and with delays that all end at once."""
    errors: dict[str, list[float]] = {}

    def nack_all(consumer: pulsar.Consumer, when: When) -> dict[tuple[int, int], float]:
        due: dict[tuple[int, int], float] = {}
        nack = consumer.negative_acknowledge
        for number in range(NACKS):
            entry = number // batch
            index = number % batch if batch > 1 else -1
            delay, moment = when()
            message_id = _pulsar.MessageId(-1, 1_000_000, entry, index)
            if delay is None:
                nack(message_id)
            else:
                nack(message_id, delay=delay)
            if index <= 0:
                due[1_000_000, entry] = moment
        return due

    def contestant(name: str, kind: type[pulsar.Client], *, at_once: bool = False):
        def run() -> Stopwatch:
            topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
            with RedeliveryProxy(broker.service_url) as proxy:
                client = kind(proxy.url, logger=QUIET)
                consumer = client.subscribe(
                    topic, "bench", SHARED, negative_ack_redelivery_delay_ms=round(DELAY * 1000)
                )
                moment = time.monotonic() + DELAY

                def end() -> tuple[float, float]:
                    return max(0.0, moment - time.monotonic()), moment

                cpu, start = time.process_time(), time.perf_counter()
                due = nack_all(consumer, end if at_once else later)
                took = time.perf_counter() - start
                time.sleep(max(0.0, max(due.values()) + GRACE - time.monotonic()))
                cpu = time.process_time() - cpu
                client.close()
            errors.setdefault(name, []).extend(
                proxy.asked.get(entry, [moment + GRACE])[0] - moment
                for entry, moment in due.items()
            )
            return Stopwatch.of(NACKS, took, cpu)

        return run

    compare(
        benchmark,
        {
            "pulsar.Client": contestant("pulsar.Client", pulsar.Client),
            "pr.Client": contestant("pr.Client", pr.Client),
            "pr.Client, due at once": contestant("pr.Client, due at once", pr.Client, at_once=True),
        },
        "pulsar.Client",
        ROUNDS,
    )
    for name, found in errors.items():
        cuts = statistics.quantiles(found, n=100)
        benchmark.extra_info[f"{name}: asked for after due"] = (
            f"{cuts[49] * 1000:.0f} ms, p99 {cuts[98] * 1000:.0f} ms"
        )
    for kind in ("pulsar.Client", "pr.Client"):
        benchmark.extra_info[f"{kind}: memory per nack"] = f"{memory(broker, kind, batch):.0f} B"

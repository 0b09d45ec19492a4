"""What it costs to give up, and to take up again: `tox run -e bench`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.replay import Cluster, Redrive
from support.benchmarks.comparing import Stopwatch, compare
from support.benchmarks.loads import IN_FLIGHT, PAYLOAD, QUIET, fill, sent_on, subscribe
from support.consumer.hand_off import in_python

MESSAGES = 10_000
#: Of a redrive: with fewer, its requests to the cluster and its lock would be most of its time.
REDRIVEN = 60_000
#: What is awaited one by one.
FEW = 300
ROUNDS, REDRIVES = 9, 5
#: As `dead_letter` writes them.
DEAD = {
    "FAILURE_ATTEMPT": "1",
    "FAILURE_FINGERPRINT": "397c001face8e178",
    "FAILURE_PUBLISH_TIME": "2026-01-01T00:00:00.000Z",
    "FAILURE_REASON": "rejected",
    "FAILURE_STAGE": "handler",
    "FAILURE_TIME": "2026-01-01T00:00:00.000Z",
    "ORIGIN_MESSAGE_ID": "12:3456:-1",
    "ORIGIN_MESSAGE_IDY_TIME": "12:3456:-1",
    "REAL_SUBSCRIPTION": "bench",
    "REAL_TOPIC": "persistent://public/default/0123456789abcdef0123456789abcdef",
}


def bare(url: str, topic: str, *, count: int, awaited: bool = False) -> Stopwatch:
    """Send messages on with the properties of dead letters."""
    return sent_on(url, topic, DEAD, count=count, awaited=awaited)


def in_python_too(url: str, topic: str, *, count: int, awaited: bool) -> Stopwatch:
    """Do the same as `ours`, with the hand-off in Python."""
    with in_python(asked=True):
        return ours(url, topic, count=count, awaited=awaited)


def ours(url: str, topic: str, *, count: int, awaited: bool) -> Stopwatch:
    """Give messages up."""
    client = pr.Client(url, logger=QUIET)
    policy = pr.DeadLetterPolicy(3, initial_subscription_name="bench")
    consumer = subscribe(
        client,
        topic,
        enable_retry=True,
        dead_letter_policy=policy,
        max_pending_letters=IN_FLIGHT,
    )
    # As the bare loop's, the producer and the subscription of the dead letters are there before.
    consumer.dead_letter(consumer.receive(10_000))
    with Stopwatch(count, time.process_time) as watch:
        for _ in range(count):
            message = consumer.receive(10_000)
            if awaited:
                consumer.dead_letter(message)
            else:
                future = consumer.dead_letter_async(message)
        if not awaited:
            future.result(60)
    client.close()
    return watch


@pytest.mark.parametrize("awaited", [True, False], ids=["awaited", "pipelined"])
@pytest.mark.usefixtures("report")
def test_dead_letter(benchmark, broker, namespace, awaited):
    """A dead letter for each message, one after the other or at most 1,000 in flight."""
    base, name = "send_async + ack, same wire", "dead_letter_async"
    if awaited:
        base, name = "send + ack, same wire", "dead_letter"

    def contestant(give_up: Callable[..., Stopwatch]) -> Callable[[], Stopwatch]:
        def run() -> Stopwatch:
            topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
            fill(broker.service_url, topic, batching=True)
            count = FEW if awaited else MESSAGES
            return give_up(broker.service_url, topic, count=count, awaited=awaited)

        return run

    compare(
        benchmark,
        {
            base: contestant(bare),
            name: contestant(ours),
            f"{name}, hand-off in Python": contestant(in_python_too),
        },
        base,
        ROUNDS,
    )


@pytest.mark.usefixtures("report")
def test_redrive(benchmark, broker, namespace):
    """Dead letters back to the retry topic, and to where they came from."""

    def dead_letters() -> str:
        topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
        dlq = f"{topic}-bench-DLQ"
        client = pulsar.Client(broker.service_url, logger=QUIET)
        for name in (topic, f"{topic}-bench-RETRY", dlq):
            subscribe(client, name).close()
        client.close()
        properties = DEAD | {"REAL_TOPIC": topic}
        fill(broker.service_url, dlq, [PAYLOAD] * REDRIVEN, properties=properties)
        return dlq

    def contestant(to: str) -> Callable[[], Stopwatch]:
        def run() -> Stopwatch:
            cluster = Cluster(broker.service_url, admin_url=broker.admin_url)
            redrive = Redrive(dead_letters(), to, cluster=cluster)
            with Stopwatch(REDRIVEN, time.process_time) as watch:
                done = redrive.run()
            assert REDRIVEN == done.redriven
            return watch

        return run

    compare(
        benchmark,
        {
            "receive, send_async + ack": lambda: bare(
                broker.service_url, dead_letters(), count=REDRIVEN
            ),
            "Redrive, to the retry topic": contestant("retry"),
            "Redrive, to the origin": contestant("origin"),
        },
        "receive, send_async + ack",
        REDRIVES,
    )

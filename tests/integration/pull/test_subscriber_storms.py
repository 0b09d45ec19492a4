"""The retry budget and the adaptive concurrency on a real broker, for every kind of workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.pull.doors import Doors
from support.pull.outage import Service
from support.reading import SUBSCRIPTION, eventually

#: Of each half.
MESSAGES = 200

#: Small enough to be used up by a part of the retries, although nothing has succeeded before.
BUDGET = pr.RetryBudget(burst=5, floor=1)
POLICY = pr.RetryPolicy(max_attempts=10, backoff=pr.Fixed(1))

SHELLS: dict[str, dict[str, Any]] = {
    "threads": {},
    "threads-nack": {"redelivery": "nack"},
    "lanes": {"consumer_type": pulsar.ConsumerType.KeyShared},
    "loop": {},
    "processes": {"workers": "processes", "concurrency": 2},
}


def publish_all(client: pr.Client, topic: str, payloads: list[bytes]) -> None:
    """Publish messages, each with a key of its own."""
    producer = client.create_producer(
        topic, batching_enabled=False, block_if_queue_full=True, send_timeout_millis=0
    )
    for payload in payloads:
        producer.send_async(payload, lambda *_: None, partition_key=payload.decode())
    producer.flush()
    producer.close()


@pytest.mark.parametrize("shell", SHELLS)
def test_an_outage_holds_messages(shell, client, start, admin, topic, tmp_path):
    """The backlog stays in the topic; then all are handled, and none is dead."""
    service = Service(tmp_path)
    service.switch(on=False)
    payloads = [b"%d" % number for number in range(2 * MESSAGES)]
    publish_all(client, topic, payloads[:MESSAGES])
    handler = service.call_async if shell == "loop" else service
    subscriber = start(
        handler, retry_policy=POLICY, retry_budget=BUDGET, prefetch=20, **SHELLS[shell]
    )
    eventually(lambda: "all messages are held" in subscriber.health.reason)
    publish_all(client, topic, payloads[MESSAGES:])
    so_far = len(service.attempts())
    eventually(lambda: len(service.attempts()) >= so_far + 5)  # some are tried all the time
    assert admin.backlog(topic, SUBSCRIPTION) > MESSAGES / 2
    service.switch(on=True)
    eventually(lambda: set(service.attempts()) == set(payloads))
    eventually(lambda: not admin.backlog(topic, SUBSCRIPTION))
    retry = f"{topic}-{SUBSCRIPTION}-RETRY"
    if shell != "threads-nack":
        eventually(lambda: not admin.backlog(retry, SUBSCRIPTION))
    eventually(lambda: "running" == subscriber.health.state)
    report = subscriber.stop()
    assert (2 * MESSAGES, 0) == (report.acknowledged, report.dead_lettered)
    assert max(Counter(service.attempts()).values()) < 10


@pytest.mark.parametrize("handler", [Doors.pass_through, Doors.pass_through_async])
def test_the_crew_grows_and_shrinks(
    handler: Callable[[Doors, Any], Any], client: pr.Client, topic: str, start: Any
) -> None:
    """Never more than the limit begin, all that may do, and no message is lost."""
    doors = Doors()
    publish_all(client, topic, [b"%d" % number for number in range(MESSAGES)])
    subscriber = start(handler.__get__(doors), concurrency="auto", max_concurrency=20)
    crew = subscriber._crew

    def resize(limit: int) -> None:
        chosen = SimpleNamespace(limit=limit, record=lambda *_, **__: None)
        crew.governor._limit = chosen  # this test decides
        crew._resize()

    eventually(lambda: doors.inside == 10)
    for limit in (3, 20, 1, 7):
        resize(limit)
        while doors.inside > limit:  # a worker that goes on may have been let out
            doors.let_out(1)
        eventually(lambda limit=limit: doors.inside == limit)  # type: ignore[misc]
        doors.let_out(limit)
        eventually(lambda limit=limit: doors.inside == limit)  # type: ignore[misc]
    eventually(
        lambda: (
            (13, 7)
            == (sum(slot.parked for slot in crew._work_queue.slots), crew._work_queue.running())
        )
    )
    resize(20)
    doors.let_out(MESSAGES - doors.done)
    report = subscriber.stop()
    assert (MESSAGES, True) == (report.acknowledged, report.complete)

"""A blip on a real broker, in real time: `tox run -e soak -- -k storm`. It takes three minutes.

`tests/unit/pull/test_storms.py` is the same in virtual time.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.pull.storms import Load, Rig

#: Shorter than in virtual time. The last seconds are those that count.
RIG = Rig(rate=100, width=3, timeout=0.5, concurrency=150, before=3.0, blip=4.0, after=40.0)
LAST = 10


def run(broker: Any, **options: Any) -> Load:
    """Run the rig on a topic of its own."""
    topic = f"persistent://public/default/storm-{uuid.uuid4().hex}"
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(broker.service_url, logger=logger) as client:
        producer = client.create_producer(topic)
        return RIG.drive(
            client,
            topic,
            lambda: producer.send_async(b"order", lambda *_: None),
            time.monotonic,
            time.sleep,
            time.sleep,
            **options,
        )


@pytest.mark.parametrize("concurrency", [RIG.concurrency, "auto"])
def test_a_blip_is_no_storm(broker: Any, concurrency: Any) -> None:
    """Without a budget it stays collapsed; with it, 95 % within 30 s, and nothing is dead."""
    collapsed = run(broker, retry_budget=None)
    assert collapsed.rate(collapsed.good, RIG.end - LAST, RIG.end) < 0.5 * RIG.rate
    recovered = run(broker, concurrency=concurrency)
    assert recovered.rate(recovered.good, RIG.end - LAST, RIG.end) >= 0.95 * RIG.rate
    assert sum(recovered.retries.values()) <= 0.1 * sum(recovered.attempts.values())
    assert not recovered.dead

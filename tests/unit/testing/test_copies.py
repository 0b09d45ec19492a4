"""No message is taken for another one, whatever properties applications copy between them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker

#: For each delivery, whether it fails, and to which topics copies of it are published.
DELIVERIES = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(st.sampled_from(["orders", "orders-billing-RETRY"]), max_size=2),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(DELIVERIES, st.lists(st.sampled_from([0.0, 1.0, 5.0]), min_size=1, max_size=5))
def test_every_copy_is_handled(
    deliveries: list[tuple[bool, list[str]]], delays: list[float]
) -> None:
    """As many messages succeed as were published, though all are equal."""
    memory = MemoryBroker()
    client = memory.client()
    producers = {topic: client.create_producer(topic) for topic in ("orders", RETRY)}
    plan = iter(deliveries)
    counts: Counter[str] = Counter(sent=1)

    def handle(message: Any) -> None:
        fails, copies = next(plan, (False, []))
        for topic in copies:
            counts["sent"] += 1
            producers[topic].send(b"order", properties=message.properties())
        if fails:
            raise pr.Retry(delay=delays[counts.total() % len(delays)])
        counts["handled"] += 1

    policy = pr.RetryPolicy(max_attempts=100, backoff=pr.Immediate())
    with client.subscriber("orders", "billing", handle, retry_policy=policy, concurrency=1):
        producers["orders"].send(b"order")
        memory.join("orders", "billing")
    memory.close()
    assert counts["sent"] == counts["handled"]


RETRY = "orders-billing-RETRY"

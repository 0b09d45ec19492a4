"""The settings of a lease, and the leases of pulled deliveries, in virtual time."""

from __future__ import annotations

import pytest

import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker


def pulled(memory: MemoryBroker, **options: float) -> pr.Delivery:
    """Return a delivery with a lease of ten seconds, which may last a hundred in all."""
    memory.send("orders", b"order")
    lease = pr.Lease(max_total=100)
    (delivery,) = memory.client().pull(
        "orders", "billing", ack_deadline=10, lease=lease, redelivery="nack"
    )
    return delivery


@pytest.mark.parametrize(
    ("changes", "ends"),
    [([], 10), ([(5, 40)], 45), ([(5, 3)], 8), ([(9, 60), (60, 60)], 100)],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_a_lease_ends(
    memory: MemoryBroker, changes: list[tuple[float, float]], ends: float, is_late: bool
) -> None:
    """At its last deadline, earlier or later than the first, but not after its total."""
    delivery, began = pulled(memory), memory.clock.monotonic()
    for at, seconds in changes:
        memory.clock.advance(began + at - memory.clock.monotonic())
        delivery.modify(seconds)
    if is_late:
        memory.clock.advance(began + ends + 0.5 - memory.clock.monotonic())
        with pytest.raises(pr.LeaseExpired):
            delivery.modify(60)
        with pytest.raises(pr.LeaseExpired):
            delivery.ack()
    else:
        memory.clock.advance(began + ends - 0.5 - memory.clock.monotonic())
        delivery.ack()


def test_a_lease_of_no_seconds_ends_at_once(memory: MemoryBroker) -> None:
    """This is Pub/Sub's way to nack."""
    delivery = pulled(memory)
    delivery.modify(0)
    with pytest.raises(pr.LeaseExpired):
        delivery.ack()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"max_total": 0}, "max_total=0"), ({"max_abandoned": 0}, "max_abandoned=0")],
)
def test_what_is_no_lease(arguments: dict, text: str) -> None:
    """The error names the argument, the value and what is accepted."""
    with pytest.raises(pr.ConfigError, match=text):
        pr.Lease(**arguments)

"""Test a handler with the broker in memory: `pytest examples/test_my_handler.py`.

No server is needed. The fixtures come with the package, and hours of delay pass in milliseconds.
"""

from __future__ import annotations

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker, assert_attempts, assert_dead_lettered

POLICY = pr.RetryPolicy(
    max_attempts=4, backoff=pr.Exponential(60, 3600), dead_letter_on=(ValueError,)
)


class Till:
    """The application: it takes payments through a bank that may be down."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.outages = 0

    def handle(self, message: pulsar.Message) -> None:
        """Pay an order."""
        order = message.data().decode()
        if not order.startswith("order"):
            raise ValueError(f"not an order: {order}")
        if self.outages:
            self.outages -= 1
            raise TimeoutError("the bank does not answer")
        self.paid.append(order)


def test_an_outage_delays_a_payment(memory_broker: MemoryBroker) -> None:
    """After two failures and three minutes, the order is paid."""
    till = Till()
    till.outages = 2
    client = memory_broker.client()
    with client.subscriber("orders", "billing", till.handle, retry_policy=POLICY):
        memory_broker.send("orders", b"order 1")
        memory_broker.join("orders", "billing")
    assert till.paid == ["order 1"]
    assert_attempts(memory_broker, "orders", "billing", data=b"order 1", delays=[60, 120])
    assert_dead_lettered(memory_broker, "orders", "billing", data=[])


def test_an_outage_that_lasts_is_a_dead_letter(memory_broker: MemoryBroker) -> None:
    """After four attempts, the order goes to the dead-letter topic."""
    till = Till()
    till.outages = 1000
    client = memory_broker.client()
    with client.subscriber("orders", "billing", till.handle, retry_policy=POLICY):
        memory_broker.send("orders", b"order 1")
        memory_broker.join("orders", "billing")
    assert till.outages == 996
    assert_attempts(memory_broker, "orders", "billing", data=b"order 1", delays=[60, 120, 240])
    assert_dead_lettered(memory_broker, "orders", "billing", data=[b"order 1"])


def test_what_is_no_order_is_dead_at_once(memory_broker: MemoryBroker) -> None:
    """An invalid order is not retried."""
    client = memory_broker.client()
    with client.subscriber("orders", "billing", Till().handle, retry_policy=POLICY):
        memory_broker.send("orders", b"spam")
        memory_broker.join("orders", "billing")
    assert_attempts(memory_broker, "orders", "billing", data=b"spam", delays=[])
    assert_dead_lettered(memory_broker, "orders", "billing", data=[b"spam"])


def test_a_crash_loses_nothing(memory_broker: MemoryBroker) -> None:
    """The process dies after a retry letter is published and before the order is acknowledged."""
    till = Till()
    till.outages = 1
    memory_broker.faults.crash_after_send("orders-billing-RETRY")
    doomed = memory_broker.client().subscriber("orders", "billing", till.handle)
    with pytest.raises(pulsar.AlreadyClosed), doomed:
        memory_broker.send("orders", b"order 1")
        memory_broker.clock.settle()
    successor = memory_broker.client().subscriber("orders", "billing", till.handle)
    with successor:
        memory_broker.join("orders", "billing")
    # At-least-once: the order and its letter both exist now, so the till has to recognize an order.
    assert set(till.paid) == {"order 1"}

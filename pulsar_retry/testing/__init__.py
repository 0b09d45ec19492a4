"""What tests of applications that use this package need; shipped to users.

`MemoryBroker` is a broker in memory with a `VirtualClock`, `Faults` and assertions; the fixtures
for pytest come with the package. `pulsar_retry.testing.broker` gives a real Pulsar.
"""

from pulsar_retry.testing.asserting import (
    assert_dead_lettered,
    assert_redelivered,
    assert_retried,
)
from pulsar_retry.testing.clock import VirtualClock
from pulsar_retry.testing.deliveries import Delivered
from pulsar_retry.testing.faults import Faults
from pulsar_retry.testing.memory.asyncio_client import AsyncMemoryClient
from pulsar_retry.testing.memory.broker import MemoryBroker, MemoryClient

__all__ = [
    "AsyncMemoryClient",
    "Delivered",
    "Faults",
    "MemoryBroker",
    "MemoryClient",
    "VirtualClock",
    "assert_dead_lettered",
    "assert_redelivered",
    "assert_retried",
]

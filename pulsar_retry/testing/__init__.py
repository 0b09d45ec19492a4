"""Tools for tests of applications that use this package; they are shipped to users.

`MemoryBroker` is an in-memory broker with a `VirtualClock`, `Faults` and assertions. Fixtures for
pytest come with the package. `pulsar_retry.testing.broker` starts a real Pulsar.
"""

from pulsar_retry.testing.asserting import (
    assert_attempts,
    assert_dead_lettered,
)
from pulsar_retry.testing.clock import VirtualClock
from pulsar_retry.testing.faults import Faults
from pulsar_retry.testing.memory.asyncio_client import AsyncMemoryClient
from pulsar_retry.testing.memory.broker import MemoryBroker, MemoryClient
from pulsar_retry.testing.memory.message import Delivered

__all__ = [
    "AsyncMemoryClient",
    "Delivered",
    "Faults",
    "MemoryBroker",
    "MemoryClient",
    "VirtualClock",
    "assert_attempts",
    "assert_dead_lettered",
]

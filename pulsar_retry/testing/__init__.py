"""Tools for tests of applications that use this package; they are shipped to users.

`MemoryBroker` is an in-memory broker with a `VirtualClock`, `Faults` and assertions. Fixtures for
pytest come with the package. `pulsar_retry.testing.broker` starts a real Pulsar.
"""

from typing import TYPE_CHECKING, Any

from pulsar_retry.testing.asserting import (
    assert_attempts,
    assert_dead_lettered,
)
from pulsar_retry.testing.clock import VirtualClock
from pulsar_retry.testing.faults import Faults
from pulsar_retry.testing.memory.broker import MemoryBroker, MemoryClient
from pulsar_retry.testing.memory.message import Delivered

if TYPE_CHECKING:
    from pulsar_retry.testing.memory.asyncio_client import AsyncMemoryClient

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


def __getattr__(name: str) -> Any:
    """Import the client for asyncio when it is asked for: it needs pulsar-client 3.13."""
    if name != "AsyncMemoryClient":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pulsar_retry.testing.memory import asyncio_client  # noqa: PLC0415 - see above

    return asyncio_client.AsyncMemoryClient

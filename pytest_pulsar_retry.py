"""The fixtures of `pulsar_retry.testing` for pytest.

A module of its own, outside of the package: pytest imports it at the start of every run, so it
imports nothing but pytest until a test asks for one of the fixtures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pulsar_retry.testing import MemoryBroker, MemoryClient, VirtualClock
    from pulsar_retry.testing.broker import RunningBroker


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """Return the clock of `memory_broker`: it stands still until the test lets it go on."""
    from pulsar_retry.testing import VirtualClock

    return VirtualClock()


@pytest.fixture
def memory_broker(virtual_clock: VirtualClock) -> Iterator[MemoryBroker]:
    """Return an empty broker in memory; at the end its clients are killed."""
    from pulsar_retry.testing import MemoryBroker

    broker = MemoryBroker(virtual_clock)
    yield broker
    broker.close()


@pytest.fixture
def memory_client(memory_broker: MemoryBroker) -> MemoryClient:
    """Return a client of the broker in memory."""
    return memory_broker.client()


@pytest.fixture(scope="session")
def real_broker() -> Iterator[RunningBroker]:
    """Return a real Pulsar: PULSAR_SERVICE_URL's, a container's, or a child process's.

    It needs ``pip install 'pulsar-retry[testing]'``. Each worker of pytest-xdist starts one of its
    own, unless PULSAR_SERVICE_URL names one.
    """
    from pulsar_retry.testing.broker import running_broker

    with running_broker() as broker:
        yield broker

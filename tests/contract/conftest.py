"""One suite for two brokers: the in-memory broker must behave like the real one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_retry.testing import MemoryBroker
from support.brokers.contract import Place


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.broker)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Give a broker: first the in-memory one, then the real one."""
    broker = MemoryBroker() if request.param == "memory" else request.getfixturevalue("broker")
    place = Place(broker)
    yield place
    place.close()

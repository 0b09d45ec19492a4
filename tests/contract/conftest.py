"""One suite for two brokers: the in-memory broker must behave like the real one.

On the real broker it runs twice: with the hand-off in C++, if that can be used here, and in Python.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_retry.testing import MemoryBroker
from support.brokers.contract import Place
from support.consumer.hand_off import in_python


@pytest.fixture(
    params=[
        "memory",
        pytest.param("real", marks=pytest.mark.broker),
        pytest.param("real, hand-off in Python", marks=pytest.mark.broker),
    ]
)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Give a broker: first the in-memory one, then the real one."""
    with in_python(asked=request.param.endswith("Python")):
        broker = MemoryBroker() if request.param == "memory" else request.getfixturevalue("broker")
        place = Place(broker)
        yield place
        place.close()

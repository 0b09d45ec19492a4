"""Arguments of a newer pulsar-client reach it; those that nobody knows are told, at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pulsar
import pytest

from pulsar_retry.testing import MemoryBroker
from support.versions import SINCE_3_13


@pytest.fixture
def got(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Give pulsar-client one more argument, and return what it got, with the topics."""
    got: list[tuple[Any, Any]] = []
    original = pulsar.Client.subscribe

    def subscribe(self: Any, topic: Any, *args: Any, newest: Any = None, **kwargs: Any) -> Any:
        got.append((topic, newest))
        return original(self, topic, *args, **kwargs)

    monkeypatch.setattr(pulsar.Client, "subscribe", subscribe)
    return got


def test_of_one_topic_and_of_two(got: list[tuple[Any, Any]]) -> None:
    """With retries both subscriptions get it."""
    memory = MemoryBroker()
    memory.client().subscribe("orders", "billing", newest=7)
    assert [("orders", 7)] == got
    got.clear()
    memory.client().subscribe(
        "teas", "billing", pulsar.ConsumerType.Shared, enable_retry=True, newest=7
    )
    assert {7} == {newest for topic, newest in got if "teas" in topic}
    assert 2 == len([topic for topic, _ in got if "teas" in topic])
    memory.close()


@SINCE_3_13
def test_of_asyncio(got: list[tuple[Any, Any]]) -> None:
    """The same."""
    memory = MemoryBroker()

    async def play() -> None:
        async with memory.asyncio_client() as client:
            await client.subscribe("orders", "billing", newest=7)
            with pytest.raises(TypeError, match="newset"):
                await client.subscribe("orders", "other", newset=7)

    asyncio.run(play())
    memory.close()
    assert [("orders", 7)] == got


def test_a_misspelt_argument_is_told() -> None:
    """Nothing was opened."""
    memory = MemoryBroker()
    with pytest.raises(TypeError, match="unexpected keyword argument 'enable_retires'"):
        memory.client().subscribe("orders", "billing", enable_retires=True)
    memory.close()

"""Subscriptions to a pattern of topics."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_new_topics_are_looked_for_as_often_as_is_asked(memory, monkeypatch, kind):
    """`pulsar.Client` takes the period, and always looks once a minute."""
    client = memory.client() if kind == "blocking" else memory.asyncio_client()
    raw, seen = getattr(client, "_inner", client)._client, []
    subscribe_pattern = raw.subscribe_pattern

    def seeing(pattern: str, subscription: str, configuration: Any) -> Any:
        seen.append(configuration.pattern_auto_discovery_period())
        return subscribe_pattern(pattern, subscription, configuration)

    monkeypatch.setattr(raw, "subscribe_pattern", seeing)

    async def opened(**period: int) -> None:
        given = client.subscribe(re.compile("public/default/orders-.*"), "billing", **period)
        consumer = await given if asyncio.iscoroutine(given) else given
        closed = consumer.close()
        await closed if asyncio.iscoroutine(closed) else None

    asyncio.run(opened())
    asyncio.run(opened(pattern_auto_discovery_period=5))
    assert [60, 5] == seen

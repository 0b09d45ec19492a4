"""Clients that an application's own provider of service information moves to another cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Thread
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr

FIRST, SECOND = (f"pulsar://127.0.0.1:{port}" for port in (1, 2))
_Base: Any = getattr(pulsar, "ServiceInfoProvider", object)


class Provider(_Base):
    """Keeps only the last callback, as the examples of pulsar-client do."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.move: Callable[[Any], None]

    def initial_service_info(self) -> Any:
        self.calls.append("initial_service_info")
        return pulsar.ServiceInfo(FIRST)

    def initialize(self, on_service_info_update: Callable[[Any], None]) -> None:
        self.calls.append("initialize")
        self.move = on_service_info_update

    def close(self) -> None:
        self.calls.append("close")


def urls(*clients: Any) -> set[str]:
    """Return the service URLs of *clients*."""
    return {each.get_service_info().service_url for each in clients}


def test_the_client_and_its_client_of_letters_follow() -> None:
    """Otherwise an application with a cluster fail-over stays on the dead cluster."""
    provider = Provider()
    with pr.Client(provider) as client:
        both = client, client.parts.letter_client
        assert urls(*both) == {FIRST}
        provider.move(pulsar.ServiceInfo(SECOND))
        assert urls(*both) == {SECOND}


def test_the_provider_is_used_as_by_one_client() -> None:
    """Each method is called once; the object is never changed."""
    provider = Provider()
    client = pr.Client(provider)
    provider.move(pulsar.ServiceInfo(SECOND))
    assert provider.calls == ["initial_service_info", "initialize"]
    client.close()
    assert provider.calls == ["initial_service_info", "initialize", "close"]
    assert vars(provider).keys() == {"calls", "move"}


def test_a_client_that_is_dropped_closes_the_provider() -> None:
    """As pulsar-client does."""
    provider = Provider()
    client = pr.Client(provider)
    del client
    assert provider.calls[-1] == "close"


def test_one_provider_of_two_clients_closes_with_each() -> None:
    """pulsar-client calls its methods once for each client, too."""
    provider = Provider()
    first, second = pr.Client(provider), pr.Client(provider)
    first.close()
    second.close()
    assert provider.calls.count("initialize") == provider.calls.count("close") == 2


def test_an_invalid_update_is_refused_and_changes_nothing() -> None:
    """With pulsar-client's error, where the provider makes the call."""
    provider = Provider()
    with pr.Client(provider) as client:
        with pytest.raises(RuntimeError, match="ServiceInfo"):
            provider.move("nonsense")
        assert urls(client, client.parts.letter_client) == {FIRST}


def test_a_provider_can_find_the_cluster_while_it_is_initialized() -> None:
    """On a thread of its own that it waits for."""

    class Searching(Provider):
        def initialize(self, on_service_info_update: Callable[[Any], None]) -> None:
            super().initialize(on_service_info_update)
            search = Thread(target=self.move, args=(pulsar.ServiceInfo(SECOND),))
            search.start()
            search.join()

    with pr.Client(Searching()) as client:
        assert urls(client, client.parts.letter_client) == {SECOND}


def test_an_asyncio_client_follows() -> None:
    """With its client of letters."""

    async def follow() -> None:
        provider = Provider()
        async with pr.asyncio.Client(provider) as client:
            provider.move(pulsar.ServiceInfo(SECOND))
            assert urls(client, client._inner.parts.letter_client) == {SECOND}
        assert provider.calls[-1] == "close"

    asyncio.run(follow())

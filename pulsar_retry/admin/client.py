"""The client of the REST API."""

from __future__ import annotations

from typing import Self

from pulsar_retry.admin.endpoint import Endpoint
from pulsar_retry.admin.namespaces import Namespaces
from pulsar_retry.admin.subscriptions import Subscriptions
from pulsar_retry.admin.topics import Topics
from pulsar_retry.admin.transport import Transport


class AdminClient:
    """A client of Pulsar's REST API. Thread-safe, a context manager, and opens nothing by itself.

    Each call blocks until its answer; what only reads is tried again for some seconds while a
    broker restarts. Everything raises `AdminError`, or one of its subclasses.

    Attributes:
        endpoint: Where the API is. Its `repr` tells no secret, nor do errors.
        namespaces: What is asked of namespaces.
        topics: What is asked of topics.
        subscriptions: What is asked of subscriptions, and done to them.
    """

    def __init__(self, endpoint: Endpoint, *, check: bool = False) -> None:
        """Make a client, such as ``AdminClient(Cluster("pulsar://localhost:6650"))``.

        Args:
            endpoint: Where the API is, and who we are.
            check: Whether the first call begins with a look whether the API answers, for 4 s at
                most: a wrong URL is told at once then.
        """
        self.endpoint = endpoint
        self._transport = Transport(endpoint, check=check)
        self.namespaces = Namespaces(self._transport)
        self.topics = Topics(self._transport)
        self.subscriptions = Subscriptions(self._transport)

    def tenants(self) -> list[str]:
        """Return the names of all tenants, which takes a superuser."""
        names: list[str] = self._transport.json("GET", "tenants")
        return sorted(names)

    def broker_version(self) -> str:
        """Return the version of the broker that answers, such as ``4.2.4``."""
        return self._transport.send("GET", "brokers/version").body.decode().strip().strip('"')

    def broker_configuration(self) -> dict[str, str]:
        """Return the settings that the broker runs with, which takes a superuser."""
        facts: dict[str, str] = self._transport.json("GET", "brokers/configuration/runtime")
        return facts

    def close(self) -> None:
        """Close its connections; a call afterwards opens new ones."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"AdminClient({self.endpoint.admin_url})"

"""The client of the REST API."""

from __future__ import annotations

from typing import Self

from pulsar_retry.admin.subscriptions import Subscriptions
from pulsar_retry.admin.topics import Namespaces, Topics
from pulsar_retry.admin.transport import Endpoint, Transport


class AdminClient:
    """A client of Pulsar's REST API. Thread-safe, and a context manager.

    Making a client opens no connection. Each call blocks until its answer arrives. Requests that
    only read are repeated for some seconds while a broker restarts. Every method raises
    `AdminError`, or one of its subclasses, if the request fails.

    Attributes:
        endpoint: The location of the API. Neither its `repr` nor errors contain secrets.
        namespaces: Requests about namespaces.
        topics: Requests about topics.
        subscriptions: Requests about subscriptions, and changes to them.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        """Make a client, such as ``AdminClient(Cluster("pulsar://localhost:6650"))``."""
        self.endpoint = endpoint
        self._transport = Transport(endpoint)
        self.namespaces = Namespaces(self._transport)
        self.topics = Topics(self._transport)
        self.subscriptions = Subscriptions(self._transport)

    def broker_version(self) -> str:
        """Return the version of the broker that answers, such as ``4.2.4``."""
        return self._transport.send("GET", "brokers/version").data.decode().strip().strip('"')

    def broker_configuration(self) -> dict[str, str]:
        """Return the settings of the running broker. Needs the rights of a superuser."""
        facts: dict[str, str] = self._transport.json("GET", "brokers/configuration/runtime")
        return facts

    def close(self) -> None:
        """Close all connections. A later call opens new ones."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"AdminClient({self.endpoint.admin_url})"

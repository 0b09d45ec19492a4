"""The parts of a cluster's REST API that this package uses: typed, thread-safe, blocking."""

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.admin.subscriptions import StoredEntry, Subscriptions
from pulsar_retry.admin.topics import Namespaces, Retention, Topics
from pulsar_retry.admin.transport import Endpoint

__all__ = [
    "AdminClient",
    "Endpoint",
    "Namespaces",
    "Position",
    "Retention",
    "StoredEntry",
    "Subscriptions",
    "Topics",
]

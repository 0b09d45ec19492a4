"""Fixtures of every test on the cluster: all processes run, and each test has its own namespace."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

import pulsar
import pytest

import pulsar_retry as pr
from support.brokers.clusters import RunningCluster


@pytest.fixture
def namespace(cluster: RunningCluster) -> Iterator[str]:
    """Give a new namespace, and restart the processes that an earlier test has killed."""
    cluster.mend()
    name = f"public/{uuid.uuid4().hex}"
    cluster.call("PUT", f"namespaces/{name}")
    yield name
    cluster.mend()
    with suppress(OSError):
        cluster.call("DELETE", f"namespaces/{name}?force=true")


@pytest.fixture
def client(cluster: RunningCluster) -> Iterator[pr.Client]:
    """Give a client with all rights."""
    with cluster.client() as client:
        yield client


@pytest.fixture
def grant(cluster: RunningCluster, client: pr.Client) -> Callable[..., None]:
    """Return a function that grants a role rights on a topic, and creates the topic if needed."""

    def grant(topic: str, role: str, *actions: str) -> None:
        client.create_producer(topic).close()
        path = topic.replace("://", "/")
        cluster.call("POST", f"{path}/permissions/{role}", list(actions))

    return grant


@pytest.fixture
def send(client: pr.Client, topic: str) -> Callable[..., pulsar.MessageId]:
    """Return a function that publishes to the test's topic."""

    def send(content: bytes = b"order") -> pulsar.MessageId:
        producer = client.create_producer(topic)
        sent = producer.send(content)
        producer.close()
        return sent

    return send

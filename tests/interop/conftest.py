"""The Java and Go clients and ours behind one face, on the session's broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.brokers.admin import Admin
from support.interop.ours import PythonSide
from support.interop.peers import PeerSide
from support.interop.programs import go_program, java_program, running


@pytest.fixture(scope="module")
def java_side(
    broker: Any, admin: Admin, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PeerSide]:
    """Give the module's JVM with the Java client in it, connected to the session's broker."""
    folder = tmp_path_factory.mktemp("java")
    with running(java_program("Interop.java", broker.service_url, folder), folder) as program:
        yield PeerSide("java", program, admin)


@pytest.fixture(scope="module")
def go_side(
    broker: Any, admin: Admin, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PeerSide]:
    """Give the module's process with the Go client in it, connected to the session's broker."""
    folder = tmp_path_factory.mktemp("go")
    with running(go_program("interop", broker.service_url, folder), folder) as program:
        yield PeerSide("go", program, admin)


@pytest.fixture
def java(java_side: PeerSide, namespace: str) -> Iterator[PeerSide]:
    """Give the Java client; what the test leaves open is closed before its namespace goes."""
    yield java_side
    java_side.close_all()


@pytest.fixture
def go(go_side: PeerSide, namespace: str) -> Iterator[PeerSide]:
    """Give the Go client; what the test leaves open is closed before its namespace goes."""
    yield go_side
    go_side.close_all()


@pytest.fixture
def python(broker: Any, admin: Admin, namespace: str) -> Iterator[PythonSide]:
    """Give this package's client."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(broker.service_url, operation_timeout_seconds=90, logger=logger) as client:
        yield PythonSide(client, admin)


@pytest.fixture
def publish(python: PythonSide, topic: str) -> Any:
    """Return a function that publishes to the test's topic, or another, and returns the id."""

    def publish(content: bytes | None = b"order", *, topic: str = topic, **options: Any) -> str:
        producer = python.client.create_producer(topic)
        sent = producer.send(content, **options)
        producer.close()
        return f"{sent.ledger_id()}:{sent.entry_id()}:{sent.partition()}"

    return publish

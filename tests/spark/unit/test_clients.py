"""One client for a process and a connection, and when it is closed."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from pulsar_retry_spark import clients


class Raw:
    """Stands for pulsar-client's producer."""

    def __init__(self) -> None:
        self.closed = False

    def close_async(self, _callback: Any) -> None:
        self.closed = True


class Client:
    """Stands for `pulsar.Client`."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.created: list[Raw] = []

    def create_producer(self, _topic: str, **_arguments: Any) -> Any:
        self.created.append(Raw())
        return type("Producer", (), {"_producer": self.created[-1]})

    def close(self) -> None:
        self.closed.set()


@attrs.frozen
class Connection:
    """Opens no connection."""

    name: str
    opened: list[Client] = attrs.field(factory=list, eq=False)

    def open(self) -> Client:
        self.opened.append(Client())
        return self.opened[-1]

    def key_reader(self) -> None:
        """Return no keys."""


@pytest.fixture(autouse=True)
def nothing_cached(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep other tests' clients out."""
    monkeypatch.setattr(clients, "_cached", {})
    yield
    clients.close_all()


def test_equal_connections_share_a_client():
    """From task to task."""
    connection = Connection("a")
    with clients.lease(connection) as one:
        pass
    with clients.lease(Connection("a")) as two:
        assert one is two
    with clients.lease(Connection("b")) as other:
        assert other is not one
    assert 1 == len(connection.opened)


def test_a_driver_collects_its_garbage():
    """What is left out in Spark's workers is never left out in a user's own process."""
    with clients.lease(Connection("a")):
        pass
    assert 0 == gc.get_freeze_count()


def test_an_idle_client_is_closed(monkeypatch):
    """Some time after the last one has stopped using it, and then a new one is made."""
    monkeypatch.setattr(clients, "IDLE", 0.01)
    connection = Connection("a")
    with clients.lease(connection):
        pass
    assert connection.opened[0].closed.wait(120)
    with clients.lease(connection):
        assert 2 == len(connection.opened)


def test_a_client_in_use_is_not_idle():
    """Whoever leases it stops the clock, even one that is striking."""
    connection = Connection("a")
    with clients.lease(connection) as client:
        pass
    timer = client.timer
    with clients.lease(connection):
        assert timer.finished.is_set()  # cancelled
        assert client.timer is None
        timer.function(*timer.args)
        assert not connection.opened[0].closed.is_set()


def test_producers_are_kept():
    """The next task needs none of its own; one with other arguments is another one."""
    with clients.lease(Connection("a")) as client:
        one = client.producer("t", batching_enabled=True)
        assert one is client.producer("t", batching_enabled=True)
        assert one is not client.producer("t", batching_enabled=False)
        assert one is not client.producer("u", batching_enabled=True)


def test_after_a_failure_nothing_is_taken_over():
    """What is under way in a producer then is nobody's business any more."""
    connection = Connection("a")
    with pytest.raises(RuntimeError), clients.lease(connection) as client:
        client.producer("t")
        raise RuntimeError
    assert connection.opened[0].created[0].closed
    with clients.lease(connection) as client:
        client.producer("t")
    assert 2 == len(connection.opened[0].created)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_makes_its_own():
    """The parent's threads are not there, so its client would hang."""
    connection = Connection("a")
    with clients.lease(connection):
        clients._lock.acquire()
        try:
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    with clients.lease(connection):
                        status = 0 if len(connection.opened) == 2 else 1
                finally:
                    os._exit(status)
        finally:
            clients._lock.release()
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

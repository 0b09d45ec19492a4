"""Whether there is a Pulsar at an address is asked once, with some patience."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pulsar_retry_spark import reaching
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.reaching import reach

#: CONNECTED, with a server version; and ERROR, with a request id, a code and a text.
CONNECTED = b"\x08\x03\x1a\x04\x0a\x02v1"
REFUSED = b"\x08\x0e\x72\x1f\x08\x80\x01\x10\x03\x1a\x18Failed to parse eyJa.b.c"


def frame(command: bytes) -> bytes:
    """Return a command as it travels."""
    return struct.pack(">II", len(command) + 4, len(command)) + command


@contextmanager
def server(answer: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Answer one client and close; give the port, and what was asked."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connected, _ = listening.accept()
            with connected:
                size = struct.unpack(">I", connected.recv(4, socket.MSG_WAITALL))[0]
                asked.append(connected.recv(size, socket.MSG_WAITALL))
                connected.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1], asked
        thread.join(60)


def closed_port() -> int:
    """Return a port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Try once."""
    monkeypatch.setattr(reaching, "PATIENCE", 0.1)


def test_a_broker_is_asked_once():
    """With the token, as pulsar-client introduces itself; the next time nobody listens."""
    with server(frame(CONNECTED)) as (port, asked):
        connection = ClusterConnection(f"pulsar://127.0.0.1:{port}", token="secret" * 50)
        reach(connection)

    reach(connection)

    assert b"secret" * 50 in asked[0]
    assert asked[0].endswith(b"\x2a\x05token")


def test_one_of_several_hosts_is_enough():
    """As for pulsar-client."""
    with server(frame(CONNECTED)) as (port, asked):
        reach(ClusterConnection(f"pulsar://127.0.0.1:{closed_port()},127.0.0.1:{port}/"))

    assert 1 == len(asked)


def test_what_is_wrong_is_named():
    """With the broker's reason, by errors of writing and of reading."""
    with (
        server(frame(REFUSED)) as (port, _),
        pytest.raises(PulsarSourceError, match="the connection: Failed to parse") as caught,
    ):
        reach(ClusterConnection(f"pulsar://127.0.0.1:{port}"), PulsarSourceError)

    start = f"[PULSAR_SOURCE_CONNECT_ERROR] pulsar://127.0.0.1:{port} was not reached: "
    assert str(caught.value).startswith(start)


def test_a_broker_that_restarts_is_waited_for(monkeypatch):
    """For some seconds, in which nobody listens at its port."""
    monkeypatch.setattr(reaching, "PATIENCE", 60.0)
    with server(frame(CONNECTED)) as (port, asked):
        tries = []

        def check(url, endpoint, **options):
            tries.append(url)
            there = len(tries) > 2
            real(url if there else f"pulsar://127.0.0.1:{closed_port()}", endpoint, **options)

        real = reaching.check_broker
        monkeypatch.setattr(reaching, "check_broker", check)
        reach(ClusterConnection(f"pulsar://127.0.0.1:{port}"))

    assert (3, 1) == (len(tries), len(asked))


def test_a_token_that_only_workers_have_is_not_missed(monkeypatch):
    """The driver may be without: then it can't ask."""
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    url = f"pulsar://127.0.0.1:{closed_port()}"
    reach(ClusterConnection(url, token_env="NO_SUCH_TOKEN"))  # noqa: S106

"""Whether there is a Pulsar at an address, by what answers there."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pulsar_retry_spark import reaching
from pulsar_retry_spark.connection import Connection
from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.reaching import reach
from pulsar_retry_spark.source_errors import PulsarSourceError

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
        connection = Connection(f"pulsar://127.0.0.1:{port}", token="secret" * 50)
        reach(connection)

    reach(connection)

    assert b"secret" * 50 in asked[0]
    assert asked[0].endswith(b"\x2a\x05token")


def test_one_of_several_hosts_is_enough():
    """As for pulsar-client."""
    with server(frame(CONNECTED)) as (port, asked):
        reach(Connection(f"pulsar://127.0.0.1:{closed_port()},127.0.0.1:{port}/"))

    assert 1 == len(asked)


def test_a_refused_token_is_named():
    """With the broker's reason, in which no token is shown."""
    with server(frame(REFUSED)) as (port, _), pytest.raises(PulsarFailuresError) as caught:
        reach(Connection(f"pulsar://127.0.0.1:{port}", token="t"))  # noqa: S106 - of no broker

    assert str(caught.value) == (
        f"[PULSAR_SINK_AUTHENTICATION_ERROR] pulsar://127.0.0.1:{port} refuses the token (auth.*): "
        "Failed to parse …"
    )


def test_a_token_that_is_missing_is_named():
    """It is the other way not to be let in."""
    with (
        server(frame(REFUSED)) as (port, _),
        pytest.raises(PulsarSourceError, match=r"SOURCE_AUTH.* refuses clients without a token"),
    ):
        reach(Connection(f"pulsar://127.0.0.1:{port}"), PulsarSourceError)


def test_a_web_server_is_no_broker():
    """A typical mistake: the port of the REST API."""
    with (
        server(b"HTTP/1.1 400 Bad") as (port, _),
        pytest.raises(PulsarFailuresError, match="a web"),
    ):
        reach(Connection(f"pulsar://127.0.0.1:{port}"))


@pytest.mark.parametrize("answer", [b"", b"\x00", frame(b"\xff\xff\xff"), frame(b"\x08\x0e\x75")])
def test_what_is_unclear_is_left_to_the_client(answer):
    """A proxy may answer in a way of its own; what is no error is none."""
    with server(answer) as (port, _):
        reach(Connection(f"pulsar://127.0.0.1:{port}"))


@pytest.mark.parametrize("scheme", ["pulsar", "pulsar+ssl", "http"])
def test_a_wrong_address_is_named(scheme):
    """Whatever the protocol; the line has all that is needed."""
    url = f"{scheme}://127.0.0.1:{closed_port()}"

    with pytest.raises(PulsarFailuresError) as caught:
        reach(Connection(url))

    host = url.rpartition("/")[2]
    assert str(caught.value) == (
        f"[PULSAR_SINK_CONNECT_ERROR] no Pulsar was reached at {url}: {host}: connection refused"
    )


def test_a_host_that_is_not_known_is_named():
    """At once: patience does not help."""
    with pytest.raises(PulsarFailuresError, match=r"the host no\.such\.invalid is not known"):
        reach(Connection("pulsar://no.such.invalid"))


def test_a_token_that_only_workers_have_is_not_missed(monkeypatch):
    """The driver may be without: then it looks only for somebody who listens."""
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        reach(Connection(f"pulsar://127.0.0.1:{port}", token_env="NO_SUCH_TOKEN"))  # noqa: S106

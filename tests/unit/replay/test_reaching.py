"""Whether there is a broker is told at once, with the URL and the cause."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

import pulsar_retry as pr
from pulsar_retry.replay import Cluster
from pulsar_retry.replay.reaching import check_broker, problem_at

CONNECTED = b"\x00\x00\x00\x0c\x00\x00\x00\x08\x08\x03\x1a\x04\x0a\x02ok"
#: The error of a broker that does not know a token.
REFUSED = (
    b"\x00\x00\x00\x1e\x00\x00\x00\x1a\x08\x0e\x72\x16\x08\x00\x10\x05\x1a\x10No such password"
)


@contextlib.contextmanager
def serving(
    answer: bytes | None, secure: ssl.SSLContext | None = None
) -> Iterator[tuple[int, list[bytes]]]:
    """Give a port where this is answered once; None: nothing, for as long as that is waited for."""
    heard: list[bytes] = []
    done = threading.Event()

    def serve() -> None:
        connection, _ = server.accept()
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(connection)
            if secure is not None:
                stack.enter_context(contextlib.suppress(OSError))  # the client may not like it
                connection = stack.enter_context(secure.wrap_socket(connection, server_side=True))
            heard.append(connection.recv(4096))
            if answer is None:
                done.wait(60)
            else:
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], heard
        done.set()


def check(port: int, scheme: str = "pulsar", **options: str) -> None:
    """Look whether there is a broker."""
    url = f"{scheme}://127.0.0.1:{port}"
    check_broker(url, Cluster(url, **options))


def test_a_broker_that_answers() -> None:
    """It is told the token, as pulsar-client would tell it."""
    with serving(CONNECTED) as (port, heard):
        check(port, token="secret")
    assert b"secret" in heard[0]
    assert b"token" in heard[0]


def test_what_accepts_connections_and_says_nothing(monkeypatch) -> None:
    """A load balancer without a broker, for example: pulsar-client would wait for minutes."""
    monkeypatch.setattr("pulsar_retry.replay.reaching._PATIENCE", 0.2)
    with serving(None) as (port, _), pytest.raises(pr.UnreachableError, match="nothing answers"):
        check(port)


@pytest.mark.parametrize(
    ("answer", "scheme", "cause"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "pulsar", "it speaks HTTP"),
        (b"220 mail.example ESMTP\r\n", "pulsar", "no Pulsar broker answers there"),
        (b"", "pulsar", "it closes the connection"),
        (REFUSED, "pulsar", "it refuses the connection: No such password"),
        (CONNECTED, "pulsar+ssl", "no TLS connection"),
    ],
)
def test_what_is_no_broker_or_refuses(answer: bytes, scheme: str, cause: str) -> None:
    """The error is one of pulsar-client's too, and names the URL."""
    with (
        serving(answer) as (port, _),
        pytest.raises(pr.UnreachableError, match=f"{port} was not reached: {cause}") as caught,
    ):
        check(port, scheme)
    assert isinstance(caught.value, pr.PulsarRetryError)


def test_a_certificate_for_another_name_will_do_as_for_the_client(tmp_path: Path) -> None:
    """pulsar-client does not compare names unless it is told to; then we do so, too."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("another.example").configure_cert(context)
    trusted = {"tls_trust_certs_file": str(tmp_path / "ca.pem")}

    with serving(CONNECTED, context) as (port, heard):
        check(port, "pulsar+ssl", **trusted)
    assert heard

    with serving(CONNECTED, context) as (port, _):
        url = f"pulsar+ssl://127.0.0.1:{port}"
        with pytest.raises(pr.UnreachableError, match="no TLS connection"):
            check_broker(url, Cluster(url, **trusted), validate_hostname=True)


def test_one_host_of_several_will_do(free_port: Callable[[], int]) -> None:
    """As for pulsar-client, which tries them in turn."""
    with serving(CONNECTED) as (port, _):
        url = f"pulsar://127.0.0.1:{free_port()},127.0.0.1:{port}"
        check_broker(url, Cluster(url))


def test_nothing_is_opened_where_there_is_no_broker(free_port: Callable[[], int]) -> None:
    """A cluster's client, which every command uses."""
    with pytest.raises(pr.UnreachableError, match="connection refused"):
        Cluster(f"pulsar://127.0.0.1:{free_port()}").client()
    with pytest.raises(pr.UnreachableError, match=r"nowhere\.invalid was not reached"):
        Cluster("pulsar://nowhere.invalid").client()


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Return a function that returns a port where nothing listens."""

    def find() -> int:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return int(server.getsockname()[1])

    return find


def test_a_scheme_that_is_not_pulsars() -> None:
    """It is named, instead of an error of this package."""
    assert "ftp:// is not a scheme of Pulsar" == problem_at("ftp://localhost", None, None, 1.0)


def test_a_name_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up of a name knows no time-out."""
    ended = threading.Event()

    def look_up(*_: Any) -> Any:
        ended.wait(60)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert problem_at("pulsar://broker", None, None, 0.1) == "nothing answers"
    ended.set()
    for thread in threading.enumerate():
        if thread.name == "pulsar-retry-look":
            thread.join(120)

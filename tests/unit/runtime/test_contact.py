"""A wrong service URL is told while pulsar-client goes on trying, and named in its errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.runtime import contact
from pulsar_retry.runtime.reaching import problem_at

OPENERS: dict[str, Callable[[Any], Any]] = {
    "create_producer": lambda client: client.create_producer("orders"),
    "create_reader": lambda client: client.create_reader("orders", pulsar.MessageId.earliest),
    "create_table_view": lambda client: client.create_table_view("orders"),
    "subscribe": lambda client: client.subscribe("orders", "billing"),
    "subscribe with letters": lambda client: client.subscribe(
        "orders", "billing", pulsar.ConsumerType.Shared, enable_retry=True
    ),
}


@pytest.fixture
def unused_url() -> str:
    """Give the URL of a port where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"pulsar://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look what is there before these short time-outs are over."""
    monkeypatch.setattr(contact, "_AFTER", 0.1)


@pytest.mark.parametrize("kind", [pr.Client, pr.asyncio.Client])
def test_nothing_is_there(kind: Any, unused_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """One warning a client names URL and cause; so do the errors, which are pulsar-client's."""

    async def opened(client: Any, opener: Callable[[Any], Any]) -> Exception:
        with pytest.raises(pulsar.Timeout) as caught:
            if kind is pr.asyncio.Client:
                await opener(client)
            else:
                await asyncio.to_thread(opener, client)
        return caught.value

    async def scenario() -> list[Exception]:
        client = kind(unused_url, operation_timeout_seconds=3)
        errors = await asyncio.gather(*(opened(client, each) for each in OPENERS.values()))
        closed = client.close()
        if closed is not None:
            await closed
        return errors

    with caplog.at_level(logging.WARNING, "pulsar_retry"):
        errors = asyncio.run(scenario())
    told = f"{unused_url} was not reached: connection refused"
    assert [True] * len(OPENERS) == [told in str(error) for error in errors]
    assert all(isinstance(error, pulsar.Timeout) for error in errors)
    warnings = [each.getMessage() for each in caplog.records if each.name == "pulsar_retry"]
    assert [f"{told}. pulsar-client keeps trying for a while"] == warnings


def test_a_host_that_is_unknown() -> None:
    """pulsar-client says so at once; the error names the URL."""
    url = "pulsar://nowhere.invalid:6650"
    with pr.Client(url) as client, pytest.raises(pulsar.ConnectError, match=url):
        client.create_producer("orders")


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Give the URL of a server that answers with this."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield f"pulsar://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


#: The error of a broker that wants a token.
REFUSED = b"\x00\x00\x00\x16\x00\x00\x00\x12\x08\x0e\x72\x0e\x08\x00\x10\x05\x1a\x08No token"


@pytest.mark.parametrize(
    ("answer", "warned"), [(b"HTTP/1.1 400 Bad Request\r\n\r\n", True), (REFUSED, False)]
)
def test_what_is_there(answer: bytes, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A broker that wants to know who asks is a broker: the look shows no token."""
    with answering(answer) as url:
        known = contact.Contact(url)
        with pytest.raises(pulsar.Timeout, match=url), known.awaited():
            known._look()
            raise pulsar.Timeout("it took too long")
    assert ["it speaks HTTP" in each.getMessage() for each in caplog.records] == [True] * warned


def test_a_broker_that_was_reached_is_not_looked_for_again(
    unused_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that has refused."""
    known = contact.Contact(unused_url)
    with pytest.raises(pulsar.ConsumerBusy), known.awaited():
        raise pulsar.ConsumerBusy("busy")
    monkeypatch.setattr(contact.threading, "Timer", None)  # it would be called
    with pytest.raises(pulsar.Timeout, match=r"^slow$"), known.awaited():
        raise pulsar.Timeout("slow")


def test_a_name_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up of a name knows no time-out."""
    ended = threading.Event()

    def look_up(*_: Any) -> Any:
        ended.wait(60)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert problem_at("pulsar://broker", patience=0.1) == "nothing answers"
    ended.set()
    for thread in threading.enumerate():
        if thread.name == "pulsar-retry-look":
            thread.join(120)

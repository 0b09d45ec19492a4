"""HTTP servers of ours among clients that are slow on purpose."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import pulsar_retry as pr
from pulsar_retry.observe import bounded, serving
from pulsar_retry.pull.health import Health
from pulsar_retry.push.pacing.pacer import Pacer
from pulsar_retry.push.pacing.window import Window
from pulsar_retry.push.serving import Pages, Server
from support.reading import eventually

SLOW = 140


@contextlib.contextmanager
def push_server() -> Iterator[int]:
    """Give the port of a dispatcher's server."""
    pace = Pacer(Window()).pace()
    told: Any = SimpleNamespace(health=Health("running"), pace=pace, endpoint="https://example.com")
    told.metrics = SimpleNamespace(text=lambda: b"x" * 50_000_000)
    with Server(Pages(told)) as server:
        yield server.port


@contextlib.contextmanager
def metrics_server() -> Iterator[int]:
    """Give the port of a consumer's server."""
    with pr.start_metrics_server(0) as server:
        yield server.port


SERVERS = pytest.mark.parametrize("serve", [push_server, metrics_server])
Serve = Callable[[], contextlib.AbstractContextManager[int]]


def is_healthy(port: int) -> bool:
    """Ask as a health check does."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/healthz", timeout=120) as answer:
        return bool(answer.status == 200)


def has_ended(connection: socket.socket) -> bool:
    """Tell whether the server has closed a connection; wait for a while."""
    connection.settimeout(120)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


@SERVERS
def test_slow_clients_take_no_more_than_their_share(serve: Serve) -> None:
    """Of 140 only the last few have a thread and a file; who asks quickly is answered."""
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(serve())
        slow = []
        for _ in range(SLOW):
            slow.append(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
            slow[-1].sendall(b"GET /healthz HTTP/1.1\r\n")
        assert is_healthy(port)
        eventually(lambda: threading.active_count() <= before + 1 + bounded.MOST)
        assert all(map(has_ended, slow[: SLOW - bounded.MOST]))


@SERVERS
@pytest.mark.parametrize("slowly", [b"X", b""])
def test_a_request_has_a_deadline(serve: Serve, slowly: bytes, monkeypatch) -> None:
    """Of the whole, however often something comes."""
    for each in (bounded, serving):
        monkeypatch.setattr(each, "PATIENCE", 1.0)
    with serve() as port, socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        slow.settimeout(0.05)
        end = time.monotonic() + 120
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                try:
                    slow.sendall(slowly)
                    if slow.recv(1) == b"":
                        return
                except ConnectionError:
                    return
    pytest.fail("it is still open")


def is_answering() -> bool:
    """Tell whether a thread answers a request; threads of other tests do not count."""
    return any("process_request_thread" in each.name for each in threading.enumerate())


def test_who_does_not_read_the_answer_is_left(monkeypatch, capsys) -> None:
    """And nothing is printed."""
    for each in (bounded, serving):
        monkeypatch.setattr(each, "PATIENCE", 1.0)
    eventually(lambda: not is_answering())  # what other tests have asked for
    with push_server() as port, socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        eventually(is_answering)
        eventually(lambda: not is_answering())
        assert is_healthy(port)
    assert ("", "") == capsys.readouterr()


@SERVERS
def test_the_end_waits_for_nobody(serve: Serve) -> None:
    """Connections that are open are broken off."""
    with contextlib.ExitStack() as stack:
        with serve() as port:
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            assert is_healthy(port)
        assert has_ended(slow)

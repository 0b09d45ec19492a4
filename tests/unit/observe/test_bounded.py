"""The metrics' server among clients that are slow on purpose."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from pulsar_retry.observe import serving
from support.waiting import eventually

SLOW = 140


@contextlib.contextmanager
def metrics_server() -> Iterator[int]:
    """Give the port of a server."""
    big: Any = {"/big": lambda _query: (HTTPStatus.OK, "x" * 50_000_000)}
    with serving.serve_registry(CollectorRegistry(), 0, "127.0.0.1", pages=big) as server:
        yield server.port


def is_healthy(port: int) -> bool:
    """Ask as a health check does."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
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


def test_slow_clients_take_no_more_than_their_share() -> None:
    """Of 140 only the last few have a thread and a file; who asks quickly is answered."""
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(metrics_server())
        slow = []
        for _ in range(SLOW):
            slow.append(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
            slow[-1].sendall(b"GET /metrics HTTP/1.1\r\n")
        assert is_healthy(port)
        eventually(lambda: threading.active_count() <= before + 1 + serving.MOST)
        assert all(map(has_ended, slow[: SLOW - serving.MOST]))


@pytest.mark.parametrize("slowly", [b"X", b""])
def test_a_request_has_a_deadline(slowly: bytes, monkeypatch) -> None:
    """Of the whole, however often something comes."""
    monkeypatch.setattr(serving, "PATIENCE", 1.0)
    with metrics_server() as port, socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
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
    monkeypatch.setattr(serving, "PATIENCE", 1.0)
    eventually(lambda: not is_answering())  # what other tests have asked for
    with metrics_server() as port, socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(b"GET /big HTTP/1.1\r\n\r\n")
        eventually(is_answering)
        eventually(lambda: not is_answering())
        assert is_healthy(port)
    assert ("", "") == capsys.readouterr()


def test_the_end_waits_for_nobody() -> None:
    """Connections that are open are broken off."""
    with contextlib.ExitStack() as stack:
        with metrics_server() as port:
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            assert is_healthy(port)
        assert has_ended(slow)


_FORKS = """
import os, socket, sys, urllib.request
import pulsar_retry as pr
with pr.start_metrics_server(0) as server:
    with socket.create_connection(("127.0.0.1", server.port)) as before:
        urllib.request.urlopen(server.url + "/metrics").close()
        if os.fork() == 0:
            sys.exit()
        print(os.wait()[1])
        urllib.request.urlopen(server.url + "/metrics").close()
        before.sendall(b"GET /metrics HTTP/1.0\\r\\n\\r\\n")
        print(before.recv(15).decode())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_can_close_it() -> None:
    """It has no thread to wait for, and leaves the parent's connections open."""
    done = subprocess.run(
        [sys.executable, "-c", _FORKS], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == ["0", "HTTP/1.0 200 OK"]

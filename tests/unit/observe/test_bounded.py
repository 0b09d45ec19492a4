"""The metrics' server among clients that are slow on purpose."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

import pulsar_retry as pr
from pulsar_retry.observe import serving


@contextlib.contextmanager
def slow_client(server: pr.MetricsServer) -> Iterator[socket.socket]:
    """Open a connection, and send the beginning of a request."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")
        yield slow


def is_healthy(server: pr.MetricsServer) -> bool:
    """Ask as a health check does."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{server.url}/metrics", timeout=120) as answer:
        return bool(answer.status == 200)


def test_a_client_that_sends_nothing_is_left(monkeypatch, capsys) -> None:
    """Meanwhile others are answered; and nothing is printed."""
    monkeypatch.setattr(serving._Handler, "timeout", 1.0)
    with pr.start_metrics_server(0) as server, slow_client(server) as slow:
        assert is_healthy(server)
        assert slow.recv(1) == b""
    assert ("", "") == capsys.readouterr()


def test_the_end_waits_for_nobody() -> None:
    """Who has a connection open does not keep the program."""
    with contextlib.ExitStack() as stack, pr.start_metrics_server(0) as server:
        stack.enter_context(slow_client(server))
        assert is_healthy(server)


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

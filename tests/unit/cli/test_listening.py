"""Where verbs listen: the address that they were given, and the URL that they tell."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from pulsar_retry.cli._common.options import address
from pulsar_retry.push.serving import Pages, Server


def has_ipv6() -> bool:
    """Tell whether this machine does."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


LOOPBACKS = [
    "127.0.0.1:0",
    "localhost:0",
    pytest.param("[::1]:0", marks=pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6")),
]


def content(url: str) -> bytes:
    """Return what is there; the URL has a host, in brackets where it has to be."""
    assert urlsplit(url).hostname
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - our own
        read: bytes = answer.read()
    return read


@pytest.mark.parametrize("listen", LOOPBACKS)
def test_push_serve(listen: str) -> None:
    """Health and metrics are there, by IPv6 as well."""
    dispatcher: Any = SimpleNamespace(metrics=SimpleNamespace(text=lambda: b"up 1"))
    with Server(Pages(dispatcher), *address(listen)) as server:
        assert b"up 1" == content(f"http://{server.host}:{server.port}/metrics")


@pytest.mark.parametrize("listen", LOOPBACKS)
def test_metrics(listen: str) -> None:
    """They are there, broker or not."""
    program = "import sys; from pulsar_retry import cli; sys.exit(cli.main(sys.argv[1:]))"
    verb = ["metrics", "--json", "--admin-url", "http://127.0.0.1:1", "--listen", listen]
    with subprocess.Popen(
        [sys.executable, "-c", program, *verb], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert b"exporter_up" in content(json.loads(process.stdout.readline())["url"])
            process.send_signal(signal.SIGTERM)
            assert 0 == process.wait(120)
        finally:
            process.kill()

"""Where verbs listen: the address that they were given, and the URL that they tell."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry

from pulsar_retry.cli._common.options import address
from pulsar_retry.observe.serving import register_metrics, serve_registry


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
    with urllib.request.urlopen(url, timeout=30) as answer:
        read: bytes = answer.read()
    return read


@pytest.mark.parametrize("listen", LOOPBACKS)
def test_push_serve(listen: str) -> None:
    """Health and metrics are there, by IPv6 as well."""
    host, port = address(listen)
    with serve_registry(register_metrics(CollectorRegistry()), port, host) as server:
        assert b"pulsar_retry_deliveries" in content(f"{server.url}/metrics")


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

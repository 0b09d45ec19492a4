"""The ports of the standalone Pulsar."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from pulsar_retry.standalone import ports


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """Give a server that listens on a port."""
    with socket.create_server((ports.LOOPBACK, 0)) as server:
        yield server


def test_a_port_that_is_let_go_is_waited_for(server: socket.socket) -> None:
    """A broker that was killed holds its ports until the system has torn it down."""
    port = server.getsockname()[1]
    timer = threading.Timer(0.1, server.close)
    timer.start()
    assert ports.gets_free(port, 20)
    timer.join()


def test_a_port_that_stays_taken_is_given_up(server: socket.socket) -> None:
    """It is another's."""
    assert not ports.gets_free(server.getsockname()[1], 0.05)

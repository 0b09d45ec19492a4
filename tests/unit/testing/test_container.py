"""Which network a container of Pulsar gets."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from pulsar_retry.testing._container import shares_network

OURS = {"Name": socket.gethostname(), "SecurityOptions": ["name=seccomp,profile=default"]}


@pytest.mark.parametrize(
    ("daemon", "shares"),
    [
        pytest.param(OURS, True, id="on-this-machine"),
        pytest.param({**OURS, "SecurityOptions": None}, True, id="without-options"),
        pytest.param({**OURS, "Name": "docker-desktop"}, False, id="in-a-virtual-machine"),
        pytest.param({**OURS, "SecurityOptions": ["name=rootless"]}, False, id="without-root"),
    ],
)
def test_network(daemon: dict[str, Any], shares: bool) -> None:
    """A container uses our network if the daemon runs beside us, with all rights."""
    assert shares_network(daemon) is shares

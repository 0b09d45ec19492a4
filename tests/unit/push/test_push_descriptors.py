"""No more requests at a time than a process may have files open: on its real limits."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest


def limited(soft: int, hard: int, program: str) -> Any:
    """Return what *program* prints in a process with these limits."""
    before = f"""
import json, resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from pulsar_retry.push.http import room_for
"""
    done = subprocess.run(
        [sys.executable, "-c", before + program], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("soft", "rooms"), [(1024, [896, 896, 50]), (200, [100, 100, 50]), (40, [20, 20, 20])]
)
def test_room(soft, rooms):
    """Half of the files, or all but 128, are for connections."""
    program = "print(json.dumps([room_for(count) for count in (3000, 900, 50)]))"
    assert rooms == limited(soft, 1024, program)


def test_a_dispatcher_knows_its_limit():
    """It asks when it is made: whoever wants more raises the limit before."""
    program = """
import pulsar
import pulsar_retry as pr
quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
with pr.Client("pulsar://localhost:1", logger=quiet) as client:
    dispatcher = pr.push.Dispatcher(client, "t", "s", "http://localhost:1/", max_outstanding=600)
    print(json.dumps(dispatcher._pacer._window.maximum))
"""
    assert 128 == limited(256, 1024, program)

"""A process that ends while letters' producers are opened."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, socket, threading, time
import pulsar
from pulsar_retry.runtime.upstream import waiting_in_python

server = socket.create_server(("127.0.0.1", 0))  # it answers nothing
url = f"pulsar://127.0.0.1:{server.getsockname()[1]}"
logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
letters = waiting_in_python(pulsar.Client(url, logger=logger))
open_ = {"producer": lambda: letters.create_producer("topic"),
         "consumer": lambda: letters.subscribe("topic", "subscription"),
         "topics": lambda: letters.subscribe(["topic", "other"], "subscription")}[KIND]
for _ in range(20):  # pulsar-client's blocking functions look every 0.1 s
    threading.Thread(target=open_, daemon=True).start()
    time.sleep(0.005)
time.sleep(0.3)
print("ended")
"""


@pytest.mark.parametrize("kind", ["producer", "consumer", "topics"])
def test_a_process_that_ends_meanwhile(kind):
    """It ends with 0, and is not aborted."""
    program = PROGRAM.replace("KIND", repr(kind))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False
    )
    assert (0, "ended\n", "") == (done.returncode, done.stdout, done.stderr)

"""Spark Connect: a server in one process, and in another a client without a JVM."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pyspark
import pytest

from support.reading import SUBSCRIPTION

pytest.importorskip("grpc", reason="pyspark[connect] is not installed")

SPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

#: Spark 3.5 does not have the plugin among its jars; the last release that Maven Central has.
PACKAGES = {"spark.jars.packages": "org.apache.spark:spark-connect_2.12:3.5.7"}

pytestmark = [pytest.mark.feature("Spark Connect"), pytest.mark.nightly]

SERVER = """
import json, sys
from local_spark import local_session

conf = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.port": sys.argv[1],
} | json.loads(sys.argv[2])
with local_session(conf=conf):
    print("ready", flush=True)
    sys.stdin.read()
"""

CLIENT = Path(__file__).with_name("connect_client.py")


@pytest.fixture(scope="module")
def server():
    """Start a server, and give its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(port), json.dumps(PACKAGES if SPARK < (4, 0) else {})],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert "ready\n" in iter(process.stdout.readline, ""), "Ivy talks before that"
        yield f"sc://127.0.0.1:{port}"
        process.stdin.close()
        process.wait(240)


@pytest.fixture(scope="module")
def said(server, broker, admin, tmp_path_factory):
    """Run the client, and give what each of its steps has returned, or raised."""
    folder = tmp_path_factory.mktemp("connect")
    namespace = f"public/{uuid.uuid4().hex}"
    admin.create_namespace(namespace)
    options = {
        "service.url": broker.service_url,
        "topic": f"persistent://{namespace}/orders",
        "subscription": SUBSCRIPTION,
        "max_attempts": "1",
    }
    done = subprocess.run(
        [sys.executable, str(CLIENT), server, json.dumps(options), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    admin.delete_namespace(namespace)
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_session_is_of_connect(said):
    """What follows is not shown on a classic session by mistake."""
    assert "pyspark.sql.connect.session" == said["session"]


#: What each step returns, or raises.
STEPS = {
    "write": {"rows": 50, "by_reason": {"even": 50}, "by_action": {"dead_letter": 50}},
    "limit": ["PulsarFailuresError", "TOO_MANY_ROWS"],  # before anything is sent
    "oversize": ["PulsarFailuresError", "OVERSIZE"],  # Connect wraps a task's error more often
    "read": 100,
    "redrive": {"retry": 100},
    "pruned": [5, {"MALFORMED_RECORD_IN_PARSING": 5}],
    "stream": [[0, 5]],  # `foreachBatch` runs the route on the server
    "source": [False, True],  # a client can't look whether there is a column `_metadata`
}


@pytest.mark.parametrize("step", STEPS)
def test_a_step(said, step):
    """As on a classic session; what is not is said above."""
    assert STEPS[step] == said[step]


def test_rows_are_split(said):
    """Without a checkpoint where Connect has none: the error says how."""
    if SPARK >= (4, 0):
        assert [50, 50] == said["split_once"]
    else:
        kind, text = said["split_once"]
        assert "ConfigError" == kind
        assert "expected False" in text

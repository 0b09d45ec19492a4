"""Windows has none of the modules of POSIX systems, and only parts of the package need them."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import pulsar_retry

PACKAGE = Path(pulsar_retry.__file__).parent
POSIX = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}

#: What runs before each program: the standard library and pulsar-client as they are here, then
#: what is missing on Windows is taken away.
_WINDOWS = f"""
import asyncio, logging, multiprocessing.connection, os, shutil, signal, subprocess, sys, tempfile
import attrs, prometheus_client, pulsar, urllib3
sys.modules.update(dict.fromkeys({sorted(POSIX)}))
del os.fork, os.register_at_fork, os.killpg, signal.SIGHUP, signal.SIGKILL
sys.platform = "win32"
import pulsar_retry as pr
import pulsar_retry.runtime.client_log
pulsar_retry.runtime.client_log._OPEN_FILES = "/no such folder"
"""

_CONSUMER = """
from datetime import UTC, datetime
from pulsar_retry.testing import MemoryBroker
broker = MemoryBroker()
client = broker.client()
consumer = client.subscribe(
    "orders", "billing", consumer_type=pulsar.ConsumerType.Shared, enable_retry=True,
    dead_letter_policy=pr.DeadLetterPolicy(max_redeliver_count=3),
)
client.create_producer("orders").send(b"tea")
consumer.reconsume_later(consumer.receive(), delay=10)
broker.clock.advance(10)
again = consumer.receive()
assert pr.attempt_of(again) == 2
consumer.dead_letter(again, reason="invalid")
failure = pr.Failure(ValueError(), when=datetime.now(UTC))
assert pr.decide(pr.RetryPolicy(max_attempts=3, backoff=pr.Immediate()), 1, failure)
broker.close()
"""

_REAL_CLIENT = """
client = pr.Client("pulsar://127.0.0.1:1", operation_timeout_seconds=1)
try:
    client.get_topic_partitions("orders")
except pulsar.PulsarException:
    client.close()
else:
    raise AssertionError
"""

_SUBSCRIBER = """
from pulsar_retry.testing import MemoryBroker
broker = MemoryBroker()
client = broker.client()
client.create_producer("orders").send(b"tea")
with client.subscriber("orders", "billing", lambda message: None) as subscriber:
    while broker.backlog("orders", "billing"):
        pass
assert subscriber.result().acknowledged == 1
broker.close()
"""

_OTHERS = """
import pulsar_retry.cli, pulsar_retry.console, pulsar_retry.ops
assert pr.replay.Redrive and pr.push.Dispatcher and pr.asyncio.Client
assert pr.start_metrics_server
from pulsar_retry.push.http import room_for
assert room_for(5000) == 5000
"""


@pytest.mark.parametrize("program", [_CONSUMER, _REAL_CLIENT, _SUBSCRIBER, _OTHERS])
def test_it_runs_without_what_windows_has_not(program):
    """Consumers, policies, subscribers; and everything but the standalone Pulsar is imported."""
    subprocess.run([sys.executable, "-c", _WINDOWS + program], check=True, timeout=240)


def test_the_standalone_pulsar_says_where_it_runs():
    """An import error that names the systems, rather than a missing module."""
    program = """
    try:
        import pulsar_retry.standalone
    except ImportError as error:
        assert "Linux and macOS" in str(error), error
    else:
        raise AssertionError
    """
    subprocess.run(
        [sys.executable, "-c", _WINDOWS + textwrap.dedent(program)], check=True, timeout=240
    )


def test_only_the_standalone_pulsar_needs_posix():
    """A module that imports one of these at its top cannot be imported on Windows."""
    importers = {
        path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import) and POSIX & {each.name for each in node.names}
    }
    assert importers == {"standalone"}

"""The fixtures that come with the package, in the test runs of its users."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[3]

LOADED = """
import sys

import pytest

import pytest_pulsar_retry

print(*sorted(name for name in sys.modules if name.partition(".")[0] in
      {"pulsar", "_pulsar", "pulsar_retry", "attrs", "urllib3", "testcontainers"}))
"""

TESTS = """
import pulsar
from pulsar_retry.testing import assert_attempts


def test_fixtures_belong_together(memory_broker, memory_client, virtual_clock):
    assert memory_broker.clock is virtual_clock
    consumer = memory_client.subscribe(
        "orders", "billing", pulsar.ConsumerType.Shared, enable_retry=True
    )
    memory_broker.send("orders", b"x")
    consumer.reconsume_later(consumer.receive(1000), delay=60)
    began = virtual_clock.time()
    assert consumer.receive(100_000).data() == b"x"
    assert virtual_clock.time() - began == 60
    assert_attempts(memory_broker, "orders", "billing", data=b"x", delays=[60])


def test_each_test_has_a_broker_of_its_own(memory_broker):
    assert memory_broker.messages("orders") == []
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder of its own, with warnings as errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        env={"PYTHONPATH": f"{ROOT}", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_run_that_uses_no_fixture_loads_nothing(tmp_path: Path) -> None:
    """The module is imported by every run of pytest where the package is installed."""
    done = run(tmp_path, "-c", LOADED)
    assert (0, "\n", "") == (done.returncode, done.stdout, done.stderr)


def test_the_fixtures_work_where_they_are_used(tmp_path: Path) -> None:
    """In a project that knows nothing of this one's settings."""
    (tmp_path / "test_it.py").write_text(textwrap.dedent(TESTS))
    done = run(
        tmp_path, "-m", "pytest", "-p", "pytest_pulsar_retry", "-q", "-p", "no:cacheprovider"
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr

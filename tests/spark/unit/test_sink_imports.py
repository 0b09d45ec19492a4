"""What can be imported where: on a worker without PySpark, by Spark when it looks for sources."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code: str, *missing: str) -> str:
    """Run *code* in a Python that lacks some modules, and return what it prints."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({missing!r}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{hide}\n{code}"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=240,
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    "module", ["connection", "options", "frames.columns", "sink.routing", "sink.sink"]
)
def test_the_core_needs_no_pyspark(module):
    """It can send record batches, wherever they come from."""
    run(f"import pulsar_retry_spark.{module}", "pyspark")


def test_looking_for_data_sources_never_fails():
    """One package that can't be imported would hide every Python data source."""
    run(
        "from pyspark_pulsar_failures import DefaultSource", "pulsar", "_pulsar", "pyarrow", "attrs"
    )

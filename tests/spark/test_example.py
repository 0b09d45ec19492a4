"""The pipeline example runs, ends by itself, and accounts for every row."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pulsar_retry.testing.broker import RunningBroker

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_pipeline.py"


def test_every_row_is_accounted_for(broker: RunningBroker, tmp_path: Path) -> None:
    """Before the redrive and after it, the sum of what became of the rows is the rows."""
    process = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), "--output", str(tmp_path / "new")],
        env={
            **os.environ,
            "PULSAR_SERVICE_URL": broker.service_url,
            "PYTHONPATH": str(EXAMPLE.parent),  # which Python adds where PYTHONSAFEPATH is not set
        },
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    text = process.stdout
    assert "3782 rows read, 92 failed: 15 to retry, 77 dead letters" in text
    assert "3782 rows = 3690 good + 12 mended + 0 redriven and mended + 80 dead" in text
    assert "3782 rows = 3690 good + 12 mended + 15 redriven and mended + 65 dead" in text

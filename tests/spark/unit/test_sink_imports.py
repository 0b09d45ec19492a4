"""What can be imported on a worker without PySpark."""

from __future__ import annotations

import subprocess
import sys


def test_the_core_needs_no_pyspark():
    """It can send record batches, wherever they come from."""
    code = "import sys; sys.modules['pyspark'] = None; import pulsar_retry_spark.sink.sink"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)

"""A real Pulsar as a child process, for first runs and tests: no Docker, no installation.

::

    with Standalone() as broker:
        client = pulsar.Client(broker.service_url)

`pulsar-retry standalone` does the same from a shell. Besides Python, only a Java runtime of version
17 or later is necessary; `pip install "pulsar-retry[standalone]"` brings one.
"""

import sys

if sys.platform == "win32":
    raise ImportError("the standalone Pulsar runs on Linux and macOS; on Windows, use a container")

from pulsar_retry.standalone.broker import Standalone

__all__ = ["Standalone"]

"""A real Pulsar as a child process, for first runs and tests: no Docker, no installation.

::

    with Standalone() as broker:
        client = pulsar.Client(broker.service_url)

`pulsar-retry standalone` does the same from a shell. What is needed besides Python is a Java
runtime of version 17 or later; `pip install "pulsar-retry[standalone]"` brings one.
"""

from pulsar_retry.standalone.broker import Standalone

__all__ = ["Standalone"]

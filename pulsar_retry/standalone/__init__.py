"""A real Pulsar as a child process, for first runs and tests: no Docker, no installation.

::

    with Standalone() as broker:
        client = pulsar.Client(broker.service_url)

`pulsar-retry standalone` does the same from a shell. `LocalCluster` is one of several processes,
two brokers and two bookies, for tests of what one process can't show. What is needed besides Python
is a Java runtime of version 17 or later; `pip install "pulsar-retry[standalone]"` brings one.
"""

from pulsar_retry.standalone.broker import Standalone
from pulsar_retry.standalone.cluster import LocalCluster
from pulsar_retry.standalone.cluster_config import TlsFiles

__all__ = ["LocalCluster", "Standalone", "TlsFiles"]

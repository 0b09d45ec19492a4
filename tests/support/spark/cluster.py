"""A Spark cluster on this machine: a master, and two workers that have addresses of their own.

Spark starts a speculative copy of a task only on another host, so `local-cluster` has none: all of
its workers have the address of the driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Self

import pyspark

from pulsar_retry.standalone.ports import LOOPBACK, free_ports
from pulsar_retry_spark.local import _files

#: Linux answers at each address of 127.0.0.0/8.
HOSTS = (LOOPBACK, "127.0.0.2")


class Cluster:
    """The processes; a context manager. Each worker has one core, for one executor.

    Attributes:
        url: The master, for `spark.master`.
    """

    def __init__(self, folder: Path) -> None:
        self.url = f"spark://{LOOPBACK}:{next(free_ports())}"
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._folder.mkdir()
        port = self.url.rpartition(":")[2]
        self._start("master.Master", "--host", LOOPBACK, "--port", port)
        for host in HOSTS:
            work = str(self._folder / "work")
            options = ("--host", host, "--cores", "1", "--memory", "1g", "--work-dir", work)
            self._start("worker.Worker", *options, self.url)
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait()

    def _start(self, name: str, *arguments: str) -> None:
        home = Path(pyspark.__file__).parent
        folder = self._folder / str(len(self._processes))
        folder.mkdir()
        environment = os.environ | _files(folder) | {"SPARK_HOME": str(home)}
        environment |= {
            "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(folder),
        }
        process = subprocess.Popen(
            [
                str(home / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{name}",
                "--webui-port",
                "0",
                *arguments,
            ],
            env=environment,
            cwd=folder,
        )
        self._processes.append(process)

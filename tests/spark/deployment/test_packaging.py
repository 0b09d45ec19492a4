"""What `pip install` is enough for: a wheel, a fresh environment, and Spark finds the format."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from pulsar_retry.testing.broker import RunningBroker

ROOT = Path(__file__).parents[3]
OURS = ("pulsar_retry", "pulsar_retry_spark", "pyspark_pulsar_failures", "__editable__")

#: Nothing here names the package: the format alone does.
ROUND_TRIP = """
import os
from pulsar_retry_spark.local import local_session

options = {
    "service.url": os.environ["PULSAR_SERVICE_URL"],
    "topic": os.environ["TOPIC"],
    "subscription": "billing",
}
with local_session() as spark:
    failed = spark.sql("SELECT concat('row ', id) AS payload, 'invalid' AS reason FROM range(3)")
    failed = failed.selectExpr("*", "'dead_letter' AS action")
    failed.write.format("pulsar-failures").options(**options).mode("append").save()
    rows = spark.read.format("pulsar-failures").options(**options).load()
    for row in rows.orderBy("payload").collect():
        print(bytes(row.payload).decode(), row.reason, row.kind)
"""

#: Another Python data source, in a package that Spark looks for as it does for ours.
OTHER_SOURCE = """
from pyspark.sql.datasource import DataSource, DataSourceReader

class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "other"
    def schema(self):
        return "answer int"
    def reader(self, schema):
        return Reader()

class Reader(DataSourceReader):
    def read(self, partition):
        yield (42,)
"""

#: pulsar is broken where Spark looks for sources, in its Python workers.
BROKEN_PULSAR = """
import os, sys
from pulsar_retry_spark.local import local_session

os.environ["PYTHONPATH"] = sys.argv[1]
with local_session() as spark:
    print(spark.read.format("other").load().first().answer)
    try:
        spark.range(1).selectExpr("'x' AS payload").write.format("pulsar-failures").option(
            "service.url", "pulsar://localhost:1").mode("append").save()
    except Exception as error:
        print(error)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel of the tree, without leaving anything in it."""
    folder = tmp_path_factory.mktemp("wheel")
    files = (
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "pytest_pulsar_retry.py",
        "setup.cfg",
        "setup.py",
    )
    for name in files:
        shutil.copy(ROOT / name, folder)
    for name in ("pulsar_retry", "spark", "typings"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip(
        sys.executable,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir=dist",
        ".",
        cwd=folder,
        # What is tested here is the same without the extension modules, and is built sooner.
        env=os.environ | {"PULSAR_RETRY_PURE": "1"},
    )
    (built,) = (folder / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of a fresh environment with the wheel, and what it depends on."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    interpreter = folder / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    # The dependencies are those of this environment: linked, so that nothing is downloaded.
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not package.name.startswith(OURS) and not (packages / package.name).exists():
            (packages / package.name).symlink_to(package)
    pip(str(interpreter), "install", "--no-deps", "--no-index", str(wheel))
    return interpreter


def pip(
    interpreter: str, *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> None:
    """Run this environment's pip for *interpreter*."""
    command = [sys.executable, "-m", "pip", "--python", interpreter, "--quiet", *arguments]
    subprocess.run(command, cwd=cwd, env=env, check=True)


def run(python: Path, program: str, *arguments: str, **environment: str) -> list[str]:
    """Run *program* in the fresh environment and return the lines that it prints."""
    done = subprocess.run(
        [python, "-c", program, *arguments],
        # Neither the current folder nor a PYTHONPATH may lead to the tree.
        env=os.environ | {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_wheel_has_both_packages(wheel: Path) -> None:
    """The one to import, with its type marker, and the one that Spark looks for."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {
        "pulsar_retry_spark/__init__.py",
        "pulsar_retry_spark/py.typed",
        "pyspark_pulsar_failures/__init__.py",
    } <= names


def test_installing_is_enough(python: Path, broker: RunningBroker, topic: str) -> None:
    """A job on a cluster uses the format without registering it, batch write and read."""
    lines = run(python, ROUND_TRIP, PULSAR_SERVICE_URL=broker.service_url, TOPIC=topic)
    assert lines == [f"row {number} invalid dead_letter" for number in range(3)]


def test_the_shim_imports_nothing_heavy(python: Path) -> None:
    """Spark imports it for every lookup of any Python data source, so it costs nothing."""
    lines = run(python, "import sys, pyspark_pulsar_failures; print(*sys.modules, sep='\\n')")
    loaded = {name.partition(".")[0] for name in lines}
    assert "pyspark_pulsar_failures" in loaded
    assert not {"_pulsar", "pulsar", "pulsar_retry", "pulsar_retry_spark", "pyarrow"} & loaded


def test_a_broken_pulsar_breaks_no_other_source(python: Path, tmp_path: Path) -> None:
    """Other formats are found all the same, and ours says what is wrong when it is used."""
    for package, content in (
        ("pulsar", "raise ImportError('libpulsar does not load')"),
        ("_pulsar", "raise ImportError('libpulsar does not load')"),
        ("pyspark_other", OTHER_SOURCE),
    ):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(content)
    lines = run(python, BROKEN_PULSAR, str(tmp_path))
    assert lines[0] == "42"
    assert any("libpulsar does not load" in line for line in lines[1:])

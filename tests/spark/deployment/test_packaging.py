"""What `pip install` is enough for: Spark finds the format. tox installs the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pulsar_retry.testing.broker import RunningBroker

#: Where `local_spark` is.
EXAMPLES = Path(__file__).parents[3] / "examples"

#: Nothing here names the package: the format alone does.
ROUND_TRIP = """
import os
from local_spark import local_session

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
from local_spark import local_session

os.environ["PYTHONPATH"] = sys.argv[1]
with local_session() as spark:
    print(spark.read.format("other").load().first().answer)
    try:
        spark.range(1).selectExpr("'x' AS payload").write.format("pulsar-failures").option(
            "service.url", "pulsar://localhost:1").mode("append").save()
    except Exception as error:
        print(error)
"""


def run(program: str, *arguments: str, **environment: str) -> list[str]:
    """Run *program* with the installed package, not with the current folder's."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(EXAMPLES)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_installing_is_enough(broker: RunningBroker, topic: str) -> None:
    """A job on a cluster uses the format without registering it, batch write and read."""
    lines = run(ROUND_TRIP, PULSAR_SERVICE_URL=broker.service_url, TOPIC=topic)
    assert lines == [f"row {number} invalid dead_letter" for number in range(3)]


def test_a_broken_pulsar_breaks_no_other_source(tmp_path: Path) -> None:
    """Other formats are found all the same, and ours says what is wrong when it is used."""
    for package, content in (
        ("pulsar", "raise ImportError('libpulsar does not load')"),
        ("_pulsar", "raise ImportError('libpulsar does not load')"),
        ("pyspark_other", OTHER_SOURCE),
    ):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(content)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    lines = run(BROKEN_PULSAR, path)
    assert lines[0] == "42"
    assert any("libpulsar does not load" in line for line in lines[1:])

"""The guide and the recipes run as one program; on Spark 3.5 without the blocks for Spark 4."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from pathlib import Path

import pyspark
import pytest

from pulsar_retry_spark import read_failures

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [(DOCS / name).read_text(encoding="utf-8") for name in ("spark.md", "spark-recipes.md")]

SPARK, MINOR = map(int, pyspark.__version__.split(".")[:2])

# PySpark's own: old releases use distutils, and leave sockets to the garbage collection.
pytestmark = [
    pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


BLOCKS = re.findall(r"^```python\n(.*?)^```", "\n".join(PAGES), re.MULTILINE | re.DOTALL)

#: The rows that the page shows.
(ORDERS,) = re.findall(r"^```json\n(.*?)^```", PAGES[0], re.MULTILINE | re.DOTALL)

#: How a block begins that does not run on Spark 3.5, and one that needs Spark's package for Avro.
MARK, AVRO = "# Spark 4\n", "# spark-avro\n"

#: The names of this package that earlier blocks import.
USED = ("failures", "read_failures", "write_failures")

#: Releases of this package, by release of Spark; the same Scala is enough for the last one.
PACKAGES = {
    (3, 5): "spark-avro_2.12:3.5.7",
    (4, 0): "spark-avro_2.13:4.0.0",
    (4, 1): "spark-avro_2.13:4.1.1",
    (4, 2): "spark-avro_2.13:4.2.0",
    (4, 3): "spark-avro_2.13:4.2.0",
}


def run(blocks, spark, replaced):
    """Run blocks as one program with other addresses; return its names."""
    code = "".join(blocks)
    for name, real in replaced.items():
        assert name in code
        code = code.replace(name, real)
    names = {"spark": spark, "__name__": "documentation"}
    exec(compile(code, "documentation", "exec"), names)
    return names


@pytest.mark.parametrize(
    "spark",
    [{"spark.jars.packages": f"org.apache.spark:{PACKAGES[SPARK, MINOR]}"}],
    indirect=True,
    ids=["avro"],
)
def test_avro_runs(spark, broker, monkeypatch):
    """The recipe with `from_avro`, by itself; the jars come from Maven Central."""
    monkeypatch.setattr("builtins.print", lambda *_: None)
    (block,) = [each for each in BLOCKS if each.startswith(AVRO)]
    options = {"service.url": broker.service_url, "topic": "orders", "subscription": "billing"}
    before = f"from pyspark.sql import functions as F\noptions = {options}\n"
    before += f"from pulsar_retry_spark import {', '.join(USED)}\n"
    replaced = {
        "pulsar://localhost:6650": broker.service_url,
        '"payments"': repr(f"payments-{uuid.uuid4().hex}"),
    }
    names = run([before, block], spark, replaced)

    letters = read_failures(spark, names["payments"])
    values = letters.select("kind", names["from_avro"]("payload", names["schema"]).alias("value"))
    assert {("dead_letter", 1, 9.5), ("dead_letter", 2, -1.0), ("retry", 2, 1.0)} == {
        (row.kind, *row.value) for row in values.collect()
    }


@pytest.mark.feature("the programs of the guide")
def test_the_guide_runs(spark, broker, tmp_path, monkeypatch):
    """From top to bottom; addresses, the folder and the topic are the test's."""
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "orders.json").write_text(ORDERS)
    monkeypatch.setattr("builtins.print", lambda *_: None)
    left_out = (AVRO,) if SPARK >= 4 else (AVRO, MARK)
    replaced = {
        "pulsar://localhost:6650": broker.service_url,
        '"orders"': repr(f"orders-{uuid.uuid4().hex}"),
        "/data": str(tmp_path),
    }
    names = run([each for each in BLOCKS if not each.startswith(left_out)], spark, replaced)

    letters = names["letters"].collect()
    assert {row.reason for row in letters} == {
        "CAST_INVALID_INPUT",
        "amount-positive",
        "currency-known",
    }
    assert len({row.dedupe_id for row in letters}) == len(letters), "a row was written twice"

    def written(settings):
        rows = read_failures(spark, settings).collect()
        return Counter((row.kind, row.reason) for row in rows)

    three = {
        ("dead_letter", "CAST_INVALID_INPUT"): 1,
        ("dead_letter", "amount-positive"): 1,
        ("retry", "currency-known"): 1,
    }
    brought_back = {("retry", "amount-positive"): 1}
    if SPARK >= 4:
        brought_back[("retry", "CAST_INVALID_INPUT")] = 1
        assert three == written(names["shipping"])
    assert {("retry", "currency-known"): 1} == written(names["returns"])
    assert {("retry", "currency-known"): 1} == written(names["quality"])
    assert three | brought_back == written(names["options"])

"""What DQX calls invalid goes to the topics, as docs/spark-recipes.md has it."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from pulsar_retry_spark import failures, read_failures, write_failures

engine = pytest.importorskip("databricks.labs.dqx.engine", reason="skipped, because DQX is missing")

# PySpark's own: old releases use distutils, and leave sockets to the garbage collection.
pytestmark = [
    pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CHECKS = [
    {
        "name": "amount-given",
        "criticality": "error",
        "check": {"function": "is_not_null", "arguments": {"column": "amount"}},
    },
    {
        "name": "id-small",
        "criticality": "warn",
        "check": {"function": "is_not_greater_than", "arguments": {"column": "id", "limit": 3}},
    },
]


def test_invalid_rows(spark, letters):
    """Errors are reasons; rows that only have warnings are in both frames, and are good."""
    orders = spark.range(6).selectExpr("id", "nullif(id % 2, 0) AS amount")
    client = MagicMock()  # DQX asks it whether there is a workspace
    client.config._product_info = ("dqx", "0")

    core = engine.DQEngineCore(client, spark)
    valid, invalid = core.apply_checks_by_metadata_and_split(orders, CHECKS)
    assert 4 == invalid.count(), "one has only a warning"
    broken = invalid.where("size(_errors) > 0")
    bad = failures(broken.drop("_warnings", "_info"), reason="_errors", key="id", stage="dqx")
    report = write_failures(bad, letters.options)

    assert 3 == valid.count()
    assert (3, {"amount-given": 3}) == (report.rows, report.by_reason)
    (row, *_) = read_failures(spark, letters.options).where("key = '0'").collect()
    assert '{"id":0,"amount":null}' == bytes(row.payload).decode()
    assert ["amount-given"] == row.rule
    assert "message" in row.details

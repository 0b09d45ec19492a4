"""What the tests of quarantine tables share: tables of each kind, and what is in them."""

from __future__ import annotations

import uuid

import attrs
import pytest
from pyspark.sql import DataFrame, SparkSession

from pulsar_retry_spark import QuarantineTable
from support.spark.routed import Job


@attrs.frozen
class Kept:
    """A table, and how a user reads it."""

    spark: SparkSession
    table: QuarantineTable | str

    def read(self) -> DataFrame:
        """Return its rows."""
        if isinstance(self.table, str):
            self.spark.catalog.refreshTable(self.table)  # each session has a list of its files
            return self.spark.table(self.table)
        return self.spark.read.format(self.table.kind).load(self.table.path)

    def by_batch(self) -> dict[str, int]:
        """Return the number of rows of each batch."""
        counts = self.read().groupBy("quarantine_batch").count().collect()
        return {str(row.quarantine_batch): row["count"] for row in counts}

    def ids(self) -> list[str]:
        """Return the ids of all rows, sorted."""
        return sorted(row.dedupe_id for row in self.read().collect())


@pytest.fixture(params=["path", "name"])
def kept(request, spark, tmp_path):
    """Give a table of Parquet files: one that is a folder, and one of the catalog."""
    if request.param == "path":
        yield Kept(spark, QuarantineTable(path=str(tmp_path / "kept")))
    else:
        name = f"kept_{uuid.uuid4().hex}"
        yield Kept(spark, name)
        spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.fixture
def folder(spark, tmp_path):
    """Give a table that is a folder."""
    return Kept(spark, QuarantineTable(path=str(tmp_path / "kept")))


@pytest.fixture
def job(spark, options, tmp_path):
    """Give a stream whose rows go all ways."""
    return Job(spark, options, tmp_path)

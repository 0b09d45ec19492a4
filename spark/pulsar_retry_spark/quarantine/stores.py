"""Write the rows of a batch to a table so that a repeated batch replaces its own rows.

There are two kinds of tables:

- Tables of files, Parquet and ORC. Each batch has a folder, which is one partition of the table. A
  batch writes only to its own folder, so it needs no common folder for unfinished files, which
  Spark's concurrent writers of one table would remove from under each other. A batch that is
  written again is complete before it takes the folder's place. This is not atomic: for a moment,
  its rows are missing.
- Tables that can overwrite the rows which match a condition, in one commit: Delta, Iceberg and
  others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from uuid import uuid4

import attrs
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import StructType

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.errors import first_line
from pulsar_retry_spark.quarantine.rows import BATCH, ROW, TABLE, WRITER, WRITTEN, ddl
from pulsar_retry_spark.quarantine.tables import DELTA, FILES, QuarantineTable, TableBatch
from pulsar_retry_spark.session import hadoop_path

#: Formats of Spark's own catalog that can neither overwrite by a condition nor hold all types.
_UNFIT = frozenset({"avro", "csv", "hive", "jdbc", "json", "text", "xml"})


class TableStore(Protocol):
    """A table that exists, or that can be created, and has the right columns."""

    def write(self, rows: DataFrame, batch: TableBatch) -> DataFrame:
        """Replace the rows of *batch* by *rows*; return what the table has of them now.

        *rows* have the columns of `ROW`; so have the rows that are returned.
        """
        ...

    def clear(self, batch: TableBatch) -> None:
        """Remove what an empty batch has left, if that is necessary and possible."""
        ...


@attrs.frozen
class FolderStore:
    """A table of files.

    Attributes:
        spark: The session.
        root: Its folder.
        format: `parquet` or `orc`.
        name: Its name in the catalog; None if it is not there.
    """

    spark: SparkSession
    root: str
    format: str
    name: str | None = None

    def write(self, rows: DataFrame, batch: TableBatch) -> DataFrame:
        """Overwrite the folder of the batch."""
        folder = self._folder(batch)
        timed = rows.withColumn(WRITTEN, F.current_timestamp())
        found = hadoop_path(self.spark, folder)
        if found is not None and found[1].exists(found[0]):
            self._replace(timed, *found)
        else:
            timed.write.format(self.format).mode("overwrite").save(folder)
        if self.name is not None:
            self.spark.sql(f"ALTER TABLE {self.name} ADD IF NOT EXISTS {_partition(batch)}")
            self.spark.catalog.refreshTable(self.name)
        return self.spark.read.schema(ddl(ROW)).format(self.format).load(folder)

    def clear(self, batch: TableBatch) -> None:
        """Remove the folder, where Spark gives access to the file system."""
        if self.name is not None:
            self.spark.sql(f"ALTER TABLE {self.name} DROP IF EXISTS {_partition(batch)}")
        if (found := hadoop_path(self.spark, self._folder(batch))) is not None:
            path, files = found
            files.delete(path, True)  # noqa: FBT003 - Java's: and what is in it

    def _replace(self, rows: DataFrame, path: Any, files: Any) -> None:
        """Put *rows* in the place of a folder, after they are written elsewhere.

        Spark empties a folder before it evaluates the rows that overwrite it. If one of them fails,
        the earlier rows would be gone, and this may be the only place that has them.
        """
        hidden = f"{self.root.rstrip('/')}/.quarantine-{uuid4().hex}"  # Spark does not read it
        found = hadoop_path(self.spark, hidden)
        assert found is not None  # noqa: S101 - there is one for the other path
        new = found[0]
        try:
            rows.write.format(self.format).save(hidden)
        except BaseException:
            files.delete(new, True)  # noqa: FBT003 - Java's: and what is in it
            raise
        files.delete(path, True)  # noqa: FBT003 - likewise
        if not files.rename(new, path):
            raise OSError(f"the rows in {hidden} were not renamed to {path.toString()}")

    def _folder(self, batch: TableBatch) -> str:
        return f"{self.root.rstrip('/')}/{WRITER}={batch.writer}/{BATCH}={batch.name}"


@attrs.frozen
class ConditionStore:
    """A table that can overwrite by a condition.

    Attributes:
        spark: The session.
        name: Its name.
    """

    spark: SparkSession
    name: str

    def write(self, rows: DataFrame, batch: TableBatch) -> DataFrame:
        """Overwrite the rows of the batch."""
        full = rows.withColumns(
            {
                WRITTEN: F.current_timestamp(),
                WRITER: F.lit(batch.writer),
                BATCH: F.lit(batch.name),
            }
        )
        table = self.spark.table(self.name)
        columns = [
            F.col(each.name)
            if each.name.lower() in TABLE
            else F.lit(None).cast(each.dataType).alias(each.name)
            for each in table.schema
        ]
        full.select(*columns).writeTo(self.name).overwrite(_is_of(batch))
        return self.spark.table(self.name).where(_is_of(batch)).select(*ROW)

    def clear(self, batch: TableBatch) -> None:
        """Do nothing: there is nothing left."""


def open_store(table: QuarantineTable, spark: SparkSession, *, known: bool = False) -> TableStore:
    """Return the table, after a check of its columns; create it if it does not exist.

    Args:
        table: The table.
        spark: The session.
        known: Whether files were checked before. Spark has to list all of them for this.

    Raises:
        ConfigError: its columns or partitions are not what they have to be.
    """
    if table.path is not None and table.kind in FILES:
        if not known:
            _check_files(table, spark, table.path)
        return FolderStore(spark, table.path, table.kind)
    name = table.name if table.path is None else f"delta.`{table.path}`"
    assert name is not None  # noqa: S101 - a table has one or the other
    if table.path is not None or not spark.catalog.tableExists(name):
        _create(table, spark, name)
    _check_columns(table, spark.table(name).schema)
    facts = _facts(spark, name)
    kind = facts.get("Provider", "").lower()
    if kind in _UNFIT:
        raise ConfigError.bad("table", table, f"a Parquet, ORC, Delta or Iceberg table, not {kind}")
    if kind not in FILES:
        return ConditionStore(spark, name)
    parts = [each.name for each in spark.catalog.listColumns(name) if each.isPartition]
    if [each.lower() for each in parts] != [WRITER, BATCH]:
        accepted = f"a {kind} table that is partitioned by {WRITER} and {BATCH}, not by {parts}"
        raise ConfigError.bad("table", table, accepted)
    return FolderStore(spark, facts["Location"], kind, name)


def _create(table: QuarantineTable, spark: SparkSession, name: str) -> None:
    kind = table.kind
    if kind is None and _is_of_session(spark, name):
        kind = spark.conf.get("spark.sql.sources.default", "parquet")  # not Hive's, as on Spark 3.5
    using = f"USING {kind}" if kind else ""
    # Delta finds the rows of a batch by the statistics of files, and would suffer from many
    # partitions; but the commits of two writers only agree if they are in different ones.
    parts = WRITER if kind == DELTA else f"{WRITER}, {BATCH}"
    spark.sql(f"CREATE TABLE IF NOT EXISTS {name} ({ddl(TABLE)}) {using} PARTITIONED BY ({parts})")


def _is_of_session(spark: SparkSession, name: str) -> bool:
    """Return whether *name* belongs to Spark's own catalog, which has no format by itself."""
    first, *rest = name.split(".")
    if first == "spark_catalog" or not rest:
        return first == "spark_catalog" or spark.catalog.currentCatalog() == "spark_catalog"
    if spark.conf.get(f"spark.sql.catalog.{first}", None) is not None:
        return False
    return len(rest) == 1 and spark.catalog.currentCatalog() == "spark_catalog"


def _check_files(table: QuarantineTable, spark: SparkSession, path: str) -> None:
    """Check the files that a path has already, if there are any."""
    found = hadoop_path(spark, f"{path.rstrip('/')}/_delta_log")
    if found is not None and found[1].exists(found[0]):
        # Delta shows only the files of its log, and removes others one day.
        raise ConfigError.bad("table", table, "format='delta', because a Delta table is there")
    try:
        schema = spark.read.format(table.kind or "").load(path).schema
    except AnalysisException:  # no such folder, or no file from which to infer a schema
        return
    except Exception as error:
        if not hasattr(error, "java_exception"):
            raise
        # PySpark has no error of its own for a file of another format.
        accepted = f"a folder with {table.kind} files only: {first_line(error)}"
        raise ConfigError.bad("table", table, accepted) from error
    _check_columns(table, schema, partitions_are_inferred=True)


def _check_columns(
    table: QuarantineTable, schema: StructType, *, partitions_are_inferred: bool = False
) -> None:
    found = {each.name.lower(): each.dataType.simpleString() for each in schema}
    for name, kind in TABLE.items():
        if name not in found:
            accepted = f"a table with a column {name} {kind} (all: {ddl(TABLE)})"
            raise ConfigError.bad("table", table, accepted)
        if partitions_are_inferred and name in {WRITER, BATCH}:
            continue
        if found[name] != kind:
            accepted = f"a table whose column {name} is {kind}, not {found[name]}"
            raise ConfigError.bad("table", table, accepted)


def _facts(spark: SparkSession, name: str) -> Mapping[str, str]:
    """Return what Spark knows about a table, such as its `Provider` and `Location`."""
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    names = [row.col_name for row in rows]
    title = "# Detailed Table Information"  # below the columns, whose names may be the same
    facts = rows[names.index(title) :] if title in names else []
    return {row.col_name: row.data_type for row in facts}


def _is_of(batch: TableBatch) -> Column:
    return (F.col(WRITER) == batch.writer) & (F.col(BATCH) == batch.name)


def _partition(batch: TableBatch) -> str:
    return f"PARTITION ({WRITER} = '{batch.writer}', {BATCH} = '{batch.name}')"

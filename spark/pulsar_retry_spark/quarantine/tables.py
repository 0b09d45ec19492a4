"""Which table failed rows are written to, and who writes them."""

from __future__ import annotations

import re
from typing import Self

import attrs
from pyspark.sql import SparkSession

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.session import query_id

#: The formats of files that are written to a folder for each batch.
FILES = frozenset({"parquet", "orc"})

DELTA = "delta"

#: The writer of rows that no stream writes.
JOB = "job"

#: What is a part of a path does not need to be escaped.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}", re.ASCII)


@attrs.frozen
class QuarantineTable:
    """A table for failed rows: the argument `table` of `write_failures` and `route_batches`.

    It has a *name* or a *path*. If it does not exist, the first batch creates it. If it exists, it
    needs the columns in `docs/reference/spark.md`, and may have others. Files are kept in a folder
    for each batch, so a Parquet or ORC table has to be partitioned by `quarantine_writer` and
    `quarantine_batch`; an Iceberg table should be. Immutable, so thread-safe.

    Attributes:
        name: The name of a table of the catalog, such as `quality.quarantine`.
        path: Instead of a name, the folder of the table: a path or URL that Spark can write to.
        format: For a table that is created: `parquet`, `orc`, `delta`, `iceberg` or another format
            of the catalog. By default, that of the catalog for a name, and `parquet` for a path,
            which may only be one of the first three.
        writer: The name of what writes the rows, of letters, digits, dots, dashes and underscores:
            the batches of different writers never replace each other. By default the id of the
            streaming query, which a new checkpoint changes, and `job` outside of streams. If you
            set it, use a new one with each new checkpoint, whose batches start at 0 again. On Spark
            Connect, a stream needs one, because its id is not known there.
    """

    name: str | None = None
    path: str | None = attrs.field(default=None, kw_only=True)
    format: str | None = attrs.field(default=None, kw_only=True)
    writer: str | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        for attribute in ("name", "path", "format", "writer"):
            value = getattr(self, attribute)
            if value is not None and not (isinstance(value, str) and value.strip()):
                raise ConfigError.bad(attribute, value, "a text that is not empty")
        if (self.name is None) == (self.path is None):
            raise ConfigError.bad("table", self, "either a name or a path")
        if self.name is not None and "/" in self.name and "`" not in self.name:
            accepted = "the name of a table; for a folder, QuarantineTable(path=...)"
            raise ConfigError.bad("table", self.name, accepted)
        if self.path is not None and self.kind not in {*FILES, DELTA}:
            raise ConfigError.bad("format", self.format, "parquet, orc or delta for a path")
        if self.writer is not None:
            _check_name("writer", self.writer)

    @property
    def kind(self) -> str | None:
        """The format in lower case; None if the catalog decides."""
        if self.format is not None:
            return self.format.lower()
        return None if self.path is None else "parquet"

    @classmethod
    def of(cls, table: QuarantineTable | str | None) -> QuarantineTable | None:
        """Return the table that an argument stands for.

        Raises:
            ConfigError: it is neither a name nor a `QuarantineTable`.
        """
        if table is None or isinstance(table, cls):
            return table
        if isinstance(table, str):
            return cls(table)
        raise ConfigError.bad("table", table, "the name of a table, or a QuarantineTable")


@attrs.frozen
class TableBatch:
    """Whose rows are written: those of one micro-batch, or of one run of a job.

    Attributes:
        writer: The id of a streaming query, `JOB` or a name of the user's.
        name: The number of a micro-batch, or the name of a run.
    """

    writer: str
    name: str

    @classmethod
    def of(cls, table: QuarantineTable, spark: SparkSession, name: str | int) -> Self:
        """Return the batch *name* of the stream or job that runs in this thread.

        Raises:
            ConfigError: *name* has other characters.
        """
        check_batch(name)
        return cls(table.writer or query_id(spark) or JOB, str(name))

    @classmethod
    def of_stream(cls, table: QuarantineTable, spark: SparkSession, number: int) -> Self:
        """Return micro-batch *number* of the stream that runs in this thread.

        Raises:
            ConfigError: the stream is not known, so its rows could replace those of another one.
        """
        writer = table.writer or query_id(spark)
        if writer is None:
            accepted = (
                "QuarantineTable(..., writer=...), because Spark does not tell the query's id"
            )
            raise ConfigError.bad("table", table, accepted)
        return cls(writer, str(number))


def check_batch(batch: str | int | None) -> None:
    """Raise a `ConfigError` unless *batch* is None, or can name a batch."""
    if batch is not None:
        _check_name("batch", str(batch))


def _check_name(argument: str, value: str) -> None:
    if not _NAME.fullmatch(value):
        accepted = "1 to 200 letters, digits, dots, dashes and underscores"
        raise ConfigError.bad(argument, value, accepted)

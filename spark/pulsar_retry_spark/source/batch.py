"""A batch query, which reads the messages that exist when it is planned. Needs no data source."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.clients import lease
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.parsing import Option, option_texts, unknown_name
from pulsar_retry_spark.reaching import reach
from pulsar_retry_spark.source.extent import CLOCK_DIFFERENCE_MS, Extent, held
from pulsar_retry_spark.source.filters import Selection
from pulsar_retry_spark.source.options import SourceOptions
from pulsar_retry_spark.source.patience import refusals_of
from pulsar_retry_spark.source.positions import END
from pulsar_retry_spark.source.reading import Piece, read_batches
from pulsar_retry_spark.source.rows import SCHEMA
from pulsar_retry_spark.source.topics import Partition, existing, quiet, warn_if_none


def schema() -> StructType:
    """Return the schema of the rows."""
    return from_arrow_schema(SCHEMA, prefer_timestamp_ntz=True)


def columns_of(wanted: StructType) -> pa.Schema:
    """Return *wanted*, which is `schema()` or a part of it, as an Arrow schema.

    Raises:
        ConfigError: it has a column that the source does not have, or one of another type.
    """
    known = schema()
    for field in wanted:
        if field.name not in known.names:
            raise ConfigError(unknown_name("column", field.name, known.names))
        kind = known[field.name].dataType
        if field.dataType != kind or not field.nullable:
            given = field.dataType.simpleString() + ("" if field.nullable else " not null")
            raise ConfigError(f"column {field.name!r} is {given}: expected {kind.simpleString()}")
    return pa.schema([SCHEMA.field(name) for name in wanted.names])


@attrs.frozen
class BatchQuery:
    """A batch query. Picklable: the driver plans it, and workers read its pieces.

    Attributes:
        options: The source's options.
        columns: The columns to read.
        selection: The messages that have to be read.
    """

    options: SourceOptions
    columns: pa.Schema
    selection: Selection = attrs.field(factory=Selection)

    @classmethod
    def parse(cls, options: Mapping[str, str], wanted: StructType) -> BatchQuery:
        """Make a query of options as the user gave them, for the columns *wanted*.

        Raises:
            ConfigError: an option or the schema is invalid.
        """
        parsed = SourceOptions.parse(options, streaming=False)
        return cls(parsed, columns_of(wanted))

    def pieces(self) -> list[Piece]:
        """Find the topics and their ends; return one piece for each of their partitions.

        Raises:
            PulsarSourceError: the broker was not reached, or refuses.
        """
        reach(self.options.connection, PulsarSourceError)
        connection = quiet(self.options.connection)
        with refusals_of("the topics could not be looked up"), lease(connection) as cached:
            found = existing(cached.client, self.options.topics)
            warn_if_none(found, self.options.topics)
            partitions = {each.name: each for each in filter(self.selection.has, found)}
            extents = held(cached.client, partitions)
        return [self._piece(partitions[name], each) for name, each in extents.items()]

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Read one piece, in a worker."""
        return read_batches(self.options.connection, piece, self.columns, self.options.queue)

    def _piece(self, partition: Partition, extent: Extent) -> Piece:
        since, until = self.selection.since, self.selection.until
        certain = extent.last != END
        if not certain:  # only the time bounds the query
            now = round(time.time() * 1000) + CLOCK_DIFFERENCE_MS
            until = now if until is None else min(now, until)
        return Piece(
            partition,
            None,
            extent.last,
            first=extent.first if since is None else None,
            since=since,
            until=until,
            certain=certain,
            whole=self.options.fail_on_data_loss and certain,
        )


def read_failures(spark: SparkSession, options: Mapping[str, Option]) -> DataFrame:
    """Return the rows that the retry and dead-letter topics have now.

    This returns the same rows as
    ``spark.read.format("pulsar-failures").options(**options).load()``. But it needs no
    registration, and it works on Spark 3.5, which has no Python data sources. Differences: the
    topics are looked up by this process, now, and not when the frame is used; and all columns and
    messages are read, whatever the query needs.

    Args:
        spark: The session.
        options: The source's options.

    Raises:
        ConfigError: an option is invalid.
        PulsarSourceError: the broker was not reached, or refuses.
    """
    query = BatchQuery.parse(option_texts(options), schema())
    pieces = query.pieces()

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from query.read(pieces[number])

    # One task for each piece, or one without a row if there is nothing to read.
    numbers = spark.range(0, len(pieces), 1, max(1, len(pieces)))
    return numbers.mapInArrow(read, schema())

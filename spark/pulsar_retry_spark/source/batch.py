"""A batch query, which reads the messages that exist when it is planned. Needs no data source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.clients import lease
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.parsing import Option, option_texts
from pulsar_retry_spark.reaching import reach
from pulsar_retry_spark.source.extent import held
from pulsar_retry_spark.source.options import SourceOptions
from pulsar_retry_spark.source.patience import refusals_of
from pulsar_retry_spark.source.reading import Piece, read_batches
from pulsar_retry_spark.source.rows import SCHEMA
from pulsar_retry_spark.source.topics import AT_ONCE, existing, quiet, warn_if_none


def schema() -> StructType:
    """Return the schema of the rows."""
    return from_arrow_schema(SCHEMA, prefer_timestamp_ntz=True)


def check_wanted(wanted: StructType) -> None:
    """Raise a `ConfigError` if the user has named a schema other than `schema()`."""
    if wanted != schema():
        raise ConfigError("schema: expected none, because the source has its own: use select")


def pieces(options: SourceOptions) -> list[Piece]:
    """Find the topics and their ends; return one piece for each of their partitions.

    Raises:
        PulsarSourceError: the broker was not reached, or refuses.
    """
    reach(options.connection, PulsarSourceError)
    connection = quiet(options.connection)
    with refusals_of("the topics could not be looked up"), lease(connection) as cached:
        found = existing(cached.client, options)
        warn_if_none(found, options)
        wanted = [Piece.of(each, options) for each in found]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return [each for each in threads.map(partial(held, cached), wanted) if each is not None]


def read_failures(spark: SparkSession, options: Mapping[str, Option]) -> DataFrame:
    """Return the rows that the retry and dead-letter topics have now.

    This returns the same rows as
    ``spark.read.format("pulsar-failures").options(**options).load()``. But it needs no
    registration, and it works on Spark 3.5, which has no Python data sources. A difference: the
    topics are looked up by this process, now, and not when the frame is used.

    Args:
        spark: The session.
        options: The source's options.

    Raises:
        ConfigError: an option is invalid.
        PulsarSourceError: the broker was not reached, or refuses.
    """
    parsed = SourceOptions.parse(option_texts(options), streaming=False)
    found = pieces(parsed)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_batches(parsed.connection, found[number], parsed.queue)

    # One task for each piece, or one without a row if there is nothing to read.
    numbers = spark.range(0, len(found), 1, max(1, len(found)))
    return numbers.mapInArrow(read, schema())

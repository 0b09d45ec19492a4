"""The id that shows duplicates: equal for equal rows, in each attempt and in each run."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import BinaryType, DataType, MapType, NullType, StringType

from pulsar_retry.wire.properties import FAILURE_REASON, FAILURE_STAGE
from pulsar_retry_spark.frames.columns import KAFKA, Columns
from pulsar_retry_spark.frames.decoding import MAX_TEXT


def with_dedupe_id(df: DataFrame) -> DataFrame:
    """Return *df*, rows for the sink, with a `dedupe_id` for each row that has none.

    The id is a hash of the row's origin (`origin_topic`, `origin_message_id`, `source`), its
    payload (unless the message id is known), key, reason and stage. So a row has the same id each
    time it fails for the same reason. Two rows of one file that do not differ have the same id too.

    `dedupe.identity` computes the same id in Python, except for a `source` with fields that are
    neither texts, whole numbers nor booleans, because Spark's JSON is not Python's.
    """
    columns = Columns.of(df.columns, extra=True)
    names = {ours: df.columns[position] for ours, position in columns.known.items()}

    def column(ours: str) -> Column:
        return F.col(f"`{names[ours]}`") if ours in names else F.lit(None).cast("string")

    def kind(ours: str) -> DataType:
        return df.schema[names[ours]].dataType if ours in names else NullType()

    def of_failure(ours: str, header: str) -> Column:
        text = F.substring(_text(column(ours)), 1, MAX_TEXT)
        if "headers" not in names:
            return text
        return F.coalesce(text, _header(column("headers"), kind("headers"), header))

    message_id = column("origin_message_id")
    if isinstance(kind("origin_message_id"), BinaryType):
        message_id = F.hex(message_id)  # pulsar-spark's bytes, which SQL can't decode
    message_id = F.nullif(_text(message_id), F.lit(""))
    source = column("source")
    if columns.kafkas:
        source = F.struct(*[column(name).alias(name) for name in KAFKA])
    if columns.kafkas or not isinstance(kind("source"), StringType | NullType):
        source = F.to_json(source, {"ignoreNullFields": "true"})
    key = column("key")
    key = _text_or_base64(key) if isinstance(kind("key"), BinaryType) else _text(key)
    parts = [
        _text(column("origin_topic")),
        message_id,
        _text(source),
        F.when(message_id.isNull(), F.sha2(column("payload"), 256)),
        key,
        of_failure("reason", FAILURE_REASON),
        of_failure("stage", FAILURE_STAGE),
    ]
    text = F.concat_ws("\n", *[F.coalesce(part, F.lit("")) for part in parts])
    identity = F.substring(F.sha2(text, 256), 1, 32)
    known = F.nullif(column("dedupe_id"), F.lit(""))
    return df.withColumn("dedupe_id", F.coalesce(known, identity))


def _header(headers: Column, kind: DataType, name: str) -> Column:
    """Return a property of a row, from a map or from Kafka's array; there the last one wins."""
    if isinstance(kind, MapType):
        return _text_or_base64(F.try_element_at(headers, F.lit(name)).cast("binary"))
    if isinstance(kind, NullType):
        return F.lit(None).cast("string")
    named = F.filter(headers, lambda each: (each["key"] == name) & each["value"].isNotNull())
    return _text_or_base64(F.try_element_at(named, F.lit(-1))["value"])


def _text(column: Column) -> Column:
    """Return texts with replacement characters for bytes that are not UTF-8, as they are sent."""
    return _decoded(column.cast("binary"))


def _text_or_base64(column: Column) -> Column:
    """Return bytes as text if they are UTF-8, else as base64, as they are sent."""
    is_text = _decoded(column).cast("binary") == column
    # Base64 has line breaks before Spark 4.
    encoded = F.translate(F.base64(column), "\r\n", "")
    return F.when(is_text, column.cast("string")).otherwise(encoded)


def _decoded(column: Column) -> Column:
    """Return bytes as text, with replacement characters for those that are not UTF-8."""
    if hasattr(F, "make_valid_utf8"):
        return F.make_valid_utf8(column.cast("string"))
    # On Spark 3.5, half of a surrogate pair becomes one such character; in Python three.
    return F.decode(column, "utf-8")

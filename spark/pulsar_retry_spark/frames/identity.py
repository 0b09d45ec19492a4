"""The id that shows duplicates: equal for equal rows, in each attempt and in each run."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import BinaryType

from pulsar_retry_spark.frames.columns import KAFKA, Columns


def with_dedupe_id(df: DataFrame) -> DataFrame:
    """Return *df*, rows for the sink, with a `dedupe_id` for each row that has none.

    The id is a hash of the row's origin (`origin_topic`, `origin_message_id`, `source`), its
    payload (unless the message id is known), key, reason and stage. So a row has the same id each
    time it fails for the same reason. Two rows of one file that do not differ have the same id too.
    """
    columns = Columns.of(df.columns, extra=True)
    names = {ours: df.columns[position] for ours, position in columns.known.items()}

    def column(ours: str) -> Column:
        return F.col(f"`{names[ours]}`") if ours in names else F.lit(None).cast("string")

    message_id = column("origin_message_id")
    if "origin_message_id" in names and _is_binary(df, names["origin_message_id"]):
        message_id = F.hex(message_id)  # pulsar-spark's bytes, which SQL can't decode
    source = column("source")
    if columns.kafkas:
        source = F.struct(*[column(name).alias(name) for name in KAFKA])
    if columns.kafkas or "source" in names:
        source = F.to_json(source, {"ignoreNullFields": "true"})
    key = column("key")
    if "key" in names and _is_binary(df, names["key"]):
        key = F.coalesce(F.try_validate_utf8(key.cast("string")), F.base64(key))  # as it is sent
    parts = [
        column("origin_topic"),
        message_id,
        source,
        F.when(message_id.isNull(), F.sha2(column("payload"), 256)),
        key,
        column("reason"),
        column("stage"),
    ]
    text = F.concat_ws("\n", *[F.coalesce(part, F.lit("")) for part in parts])
    identity = F.substring(F.sha2(text, 256), 1, 32)
    return df.withColumn("dedupe_id", F.coalesce(column("dedupe_id"), identity))


def _is_binary(df: DataFrame, name: str) -> bool:
    return isinstance(df.schema[name].dataType, BinaryType)

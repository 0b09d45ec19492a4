"""What tells duplicates: an id that is equal for equal rows, on each attempt and in each run."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import BinaryType

from pulsar_retry_spark.columns import Columns


def with_dedupe_id(df: DataFrame) -> DataFrame:
    """Return *df*, rows for the sink, with a `dedupe_id` wherever it has none.

    It is a hash of where the row came from (`origin_topic`, `origin_message_id`, `source`), of its
    payload unless the message id is known, and of its key, reason and stage. So a row has the same
    one whenever it fails for the same reason; so have two rows of one file that do not differ.
    """
    known = Columns.of(df.columns, extra=True).known
    names = {ours: df.columns[position] for ours, position in known.items()}

    def column(ours: str) -> Column:
        return F.col(f"`{names[ours]}`") if ours in names else F.lit(None).cast("string")

    message_id = column("origin_message_id")
    source = (
        F.to_json(column("source"), {"ignoreNullFields": "true"}) if "source" in names else None
    )
    key = column("key")
    if "key" in names and isinstance(df.schema[names["key"]].dataType, BinaryType):
        key = F.coalesce(F.try_validate_utf8(key.cast("string")), F.base64(key))  # as it is sent
    parts = [
        column("origin_topic"),
        message_id,
        column("source") if source is None else source,
        F.when(message_id.isNull(), F.sha2(column("payload"), 256)),
        key,
        column("reason"),
        column("stage"),
    ]
    text = F.concat_ws("\n", *[F.coalesce(part, F.lit("")) for part in parts])
    identity = F.substring(F.sha2(text, 256), 1, 32)
    return df.withColumn("dedupe_id", F.coalesce(column("dedupe_id"), identity))

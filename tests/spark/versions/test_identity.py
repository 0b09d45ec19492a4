"""The id that shows duplicates is the same in SQL and in the sink."""

from __future__ import annotations

import pulsar
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from pulsar_retry.native.loading import native_rows
from pulsar_retry_spark.frames.columns import Columns
from pulsar_retry_spark.frames.identity import with_dedupe_id
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.sink.columnar import RowContent
from pulsar_retry_spark.sink.routing import Router

# PySpark's own: old releases use distutils, and leave sockets to the garbage collection.
pytestmark = [
    pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SINK = {"service.url": "pulsar://h:6650", "topic": "t", "subscription": "s"}

MESSAGE_ID = pulsar.MessageId(-1, 7, 300, 2).serialize().hex()

#: A binary, and one that is not UTF-8 and whose base64 has more than a line.
BINARY = "unhex('C3A9')", f"unhex('{'FF' * 90}')", "unhex('')", "CAST(null AS binary)"
TEXTS = "'a'", "''", "'ä\\n\"☃'", "CAST(null AS string)"
#: Texts that are not UTF-8. Spark 3.5 replaces halves of surrogate pairs as Java does.
BROKEN = ("CAST(unhex('61FF62') AS string)", "CAST(unhex('C361') AS string)")
if hasattr(F, "make_valid_utf8"):
    BROKEN += ("CAST(unhex('EDA08061') AS string)",)
LONG = "repeat('ä', 5000)", "repeat('r', 4097)"


def kafkas(*pairs):
    """Return an array of headers, the last of which is null, as Kafka's source has them."""
    kind = "struct<key: string, value: binary>"
    headers = [f"CAST(struct({pair}) AS {kind})" for pair in pairs]
    return f"array({', '.join(headers)}, null)"


#: Columns, each with values of one type.
FORMS = {
    "binary payload": {"payload": BINARY},
    "text payload": {"payload": TEXTS + BROKEN},
    "message id": {"origin_topic": TEXTS + BROKEN, "origin_message_id": ("'1:2:-1'", *TEXTS[1:])},
    "pulsar-spark": {
        "__topic": TEXTS,
        "__messageId": (f"unhex('{MESSAGE_ID}')", "unhex('FFFF')", *BINARY[2:]),
        "__key": BINARY,
    },
    "Kafka": {
        "topic": TEXTS,
        "partition": ("1", "0", "CAST(null AS int)"),
        "offset": ("5L", "9L", "CAST(null AS bigint)"),
        "key": BINARY,
    },
    "source": {
        "source": (
            "named_struct('file', 's3://ä/\"\\\\x', 'position', 7L, 'none', null, 'is', true)",
            "named_struct('file', '', 'position', -7L, 'none', null, 'is', false)",
        )
    },
    "text source": {"source": ("'{\"a\":1}'", *TEXTS)},
    "text key": {"key": TEXTS + BROKEN},
    "binary key": {"key": BINARY},
    "reason": {"reason": TEXTS + BROKEN + LONG, "stage": TEXTS + LONG},
    "own ids": {"dedupe_id": TEXTS},
    "no values": {"reason": ("null",), "key": ("null",), "source": ("null",), "headers": ("null",)},
    "headers": {
        "headers": (
            "map('FAILURE_REASON', 'late', 'FAILURE_STAGE', 'parse', 'DEDUPE_ID', 'no')",
            "map('FAILURE_REASON', CAST(null AS string))",
            "map('FAILURE_REASON', '')",
            f"map('FAILURE_REASON', {BROKEN[0]})",
            f"map('FAILURE_REASON', {LONG[0]})",
            "CAST(null AS map<string, string>)",
        ),
        "reason": ("'early'", "CAST(null AS string)", "''"),
    },
    "Kafka's headers": {
        "headers": (
            kafkas("'FAILURE_REASON', 'a'", "'FAILURE_REASON', 'b'", "'FAILURE_REASON', null"),
            kafkas("'FAILURE_STAGE', unhex('FF')", "null, unhex('FF')"),
            "filter(array(named_struct('key', 'a', 'value', binary(''))), e -> false)",
            "CAST(null AS array<struct<key: string, value: binary>>)",
        ),
        "stage": ("CAST(null AS string)",),
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_ids_are_the_same_everywhere(spark, form):
    """Whether rows have headers, or columns of Kafka or pulsar-spark."""
    columns = {"payload": ("binary('one')", "binary('two')")} | FORMS[form]
    if "offset" in columns or "__topic" in columns:
        columns["value"] = columns.pop("payload")
    df = spark.range(1)
    for name, values in columns.items():
        df = df.select("*", F.explode(F.expr(f"array({', '.join(values)})")).alias(name))
    df = df.drop("id")
    names = df.columns
    own = [F.col(each).alias("own") for each in names if each == "dedupe_id"]
    rows = with_dedupe_id(df.select("*", *own))
    before = [F.col("own" if each == "dedupe_id" else each).alias(each) for each in names]

    def in_python(batches):
        """Yield the ids of the row, and of the sink's two ways to make messages."""
        options = SinkOptions.parse(SINK)
        router = Router(options, Columns.of(names, extra=False), options.targets, {}, lambda: 0)
        module = native_rows().module
        for batch in batches:
            known = batch.column(batch.num_columns - 1)
            mine = batch.select(names)
            sent = pa.array([row[3]["DEDUPE_ID"] for row in router.rows(mine)], pa.string())
            usual = router.usual(mine)
            quick = sent
            if usual is not None and module is not None:
                ids = RowContent(module, usual)._properties["DEDUPE_ID"]
                quick = ids.cast(pa.string())
            yield pa.RecordBatch.from_arrays([known, sent, quick], ["a", "b", "c"])

    rows = rows.select(*before, F.col("dedupe_id").alias("known"))
    found = rows.mapInArrow(in_python, "a string, b string, c string").collect()
    assert len(found) > 1
    assert [] == [row for row in found if len(set(row)) > 1]

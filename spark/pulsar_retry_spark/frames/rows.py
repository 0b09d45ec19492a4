"""Make rows for the sink from failed rows: with a payload, a reason and an origin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.frames.columns import ALIASES
from pulsar_retry_spark.frames.plans import check_frame, hides_metadata, needs_all_columns
from pulsar_retry_spark.frames.splitting import OF_SPLIT, Verdict, json_array

#: The columns in which Spark's and Databricks' readers put what they could not read, and the
#: reason for each of them.
READER_COLUMNS = {
    "_corrupt_record": "MALFORMED_RECORD_IN_PARSING",
    "_rescued_data": "RESCUED_DATA",
}

#: Options of `to_json` that make the JSON independent of the session's settings.
_JSON = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}

#: pulsar-spark's columns for a row's origin, by the name of the argument that replaces each.
_PULSAR_SPARK = {"origin_topic": "__topic", "origin_message_id": "__messageId"}

#: The columns whose names differ from the names of their arguments.
_RENAMED = {"topic": "target_topic"}

#: For these arguments, a text that is not a column's name is a constant.
_CONSTANTS = frozenset({"action", "reason", "stage", "topic"})

#: The columns of Spark's Kafka source, of which a frame needs the first two to be one of it.
_KAFKA = ("key", "value", "topic", "partition", "offset", "timestamp", "timestamptype", "headers")

_REASONS = "a text, a struct or an array of structs"

#: Types whose text in JSON is that of their values as a key of a map.
_TEXT_LIKE = (BooleanType, NumericType, StringType)

#: Columns that these arguments name are data of the row, so they stay in its JSON.
_DATA = frozenset({"event_time", "key", "ordering_key"})


def failures(
    df: DataFrame,
    *,
    reason: Column | str = "reason",
    payload: Column | str | None = None,
    key: Column | str | None = None,
    ordering_key: Column | str | None = None,
    rule: Column | str | None = None,
    error: Column | str | None = None,
    details: Column | str | None = None,
    stage: Column | str | None = None,
    retryable: Column | str | bool | None = None,
    attempt: Column | str | int | None = None,
    delay_ms: Column | str | int | None = None,
    not_before: Column | str | None = None,
    action: Column | str | None = None,
    topic: Column | str | None = None,
    event_time: Column | str | None = None,
    headers: Column | str | None = None,
    origin_topic: Column | str | None = None,
    origin_message_id: Column | str | None = None,
    source: Column | str | None = None,
    dedupe_id: Column | str | None = None,
) -> DataFrame:
    """Turn each row of *df* into a row that the sink can write.

    The result is lazy, and made by SQL expressions alone. Every row of *df* counts as failed: use
    `split` first to remove the good rows. Each argument becomes the column of the same name. An
    argument that is not given, and that has no default below, adds no column. Arguments are Columns
    or names of columns. For *reason*, *stage*, *action* and *topic*, a text that is not a column's
    name is a constant.

    Args:
        df: The failed rows, with any columns. It may be a stream.
        reason: Why the row failed: one of a few short names. With the column `reason` that `split`
            adds, the column `rule` is used as well, and `details` if `split` has added it: a column
            `details` of your own stays in the payload, unless you name it. The reader's columns
            `_corrupt_record` and `_rescued_data` give the reasons in `READER_COLUMNS`. A struct or
            an array of structs, such as a rule engine's `_errors`, is read as by `split`: the first
            `condition` or `name` is the reason, all of them are the *rule*, and the structs are the
            *details*.
        payload: The payload of the message, binary or text. A struct, array, map or variant becomes
            JSON, and a timestamp a text in UTC. Default: `value` if *df* has only columns of
            Spark's Kafka source or of pulsar-spark, of which the others become the key, the event
            time, headers and the origin;
            `_corrupt_record` where the reader has filled it; else the row as JSON,
            without the columns that other arguments name (the columns of *key*, *ordering_key* and
            *event_time* are kept). Columns that you have added to judge the row are part of it:
            drop them before, or pass a struct of the columns to keep. The fields have the order of
            *df*, nulls are included, and times are in UTC with microseconds, whatever the settings
            of the session. `from_json` with the schema of *df* reverses it.
        key: The message's key, of the same types as *payload*.
        ordering_key: The message's ordering key, of the same types. A Key_Shared subscription
            prefers it to the key.
        rule: The rules that the row broke: a text or an array of texts.
        error: The type or condition of the error.
        details: A text with more details about the failure.
        stage: The stage of the pipeline that failed.
        retryable: False sends the row to the dead-letter topic.
        attempt: The number of the attempt that failed, from 1. Default: 1 more than the retries
            that *headers* count, so 1 without headers.
        delay_ms: The delay of a retried row, in milliseconds.
        not_before: The time (a timestamp) when a retried row is delivered. It wins over *delay_ms*.
            A timestamp without a zone is a time in the session's.
        action: `retry` or `dead_letter`, whatever the other columns say.
        topic: The topic to write to, instead of the subscription's topics. It becomes the column
            `target_topic`, because the column `topic` of a frame is the topic of the row's origin.
        event_time: When the event happened: a timestamp, or milliseconds since 1970.
        headers: Properties of the message: a map of texts.
        origin_topic: The topic that the row came from. Default: pulsar-spark's `__topic`, if *df*
            has it.
        origin_message_id: The id of the row's message there, `ledger:entry:partition[:batch]`.
            Default: pulsar-spark's `__messageId`, if *df* has it.
        source: A struct that describes any other origin of the row; it becomes JSON. Default: the
            file from `_metadata` (for Parquet, the row's number too). On Spark Connect, and on a
            cached frame, select `_metadata` explicitly.
        dedupe_id: A text that is equal for equal rows in each run of the job. Default: a hash of
            the row's origin, payload (unless *origin_message_id* is known), key, reason and stage.
            Equal rows of one file have equal ids, too.

    Raises:
        ConfigError: a text does not name a column, or *reason* has a type that can't be a reason.
    """
    given = {name: value for name, value in locals().items() if name != "df"}
    check_frame("df", df)
    if reason is None:
        raise ConfigError.bad("reason", reason, _REASONS)
    for name in _facts_of_split(df, reason):
        given[name] = name if given[name] is None and _has(df, name) else given[name]
    for name, column in _of_source(df, given).items():
        given[name] = column if given[name] is None else given[name]
    columns = {name: _column(df, name, each) for name, each in given.items() if each is not None}
    if "source" not in columns and (found := _source(df)) is not None:
        columns["source"] = found
    kinds = {field.name: field.dataType for field in _select(df, columns).schema}
    columns |= _reason(reason, columns, kinds["reason"])
    if "payload" not in columns:
        columns["payload"] = _row(df, [each for name, each in given.items() if name not in _DATA])
    else:
        payload = _message(columns["payload"], kinds["payload"])
        columns["payload"] = F.when(needs_all_columns(), payload)
    columns |= _of_known_types(columns, kinds)
    columns = {_RENAMED.get(name, name): column for name, column in columns.items()}
    for name, pulsar_spark_column in _PULSAR_SPARK.items():
        if name not in columns and _has(df, pulsar_spark_column):
            columns[pulsar_spark_column] = _named(pulsar_spark_column)
    rows = _select(df, columns)
    return rows.withColumn("dedupe_id", _identity(rows.columns))


def _identity(names: Iterable[str]) -> Column:
    """Return the id that shows duplicates, of a row that has columns of these *names*."""

    def text(*ours: str) -> Column:
        known = [F.col(name).cast("string") for name in ours if name in names]
        return F.coalesce(*known, F.lit(""))

    message_id = text("origin_message_id", "__messageId")
    parts = [
        text("origin_topic", "__topic"),
        message_id,
        text("source"),
        F.when(message_id == "", F.sha2("payload", 256)),
        *map(text, ("key", "reason", "stage")),
    ]
    content = F.concat_ws("\n", *[F.coalesce(part, F.lit("")) for part in parts])
    known = F.nullif(text("dedupe_id"), F.lit(""))
    return F.coalesce(known, F.substring(F.sha2(content, 256), 1, 32))


def _facts_of_split(df: DataFrame, reason: Column | str) -> list[str]:
    """Return the columns that belong to the *reason* of `split`."""
    if not (isinstance(reason, str) and reason.lower() == "reason" and _has(df, reason)):
        return []
    # Another column `details` than that of `split` is data of the row.
    details = [each for each in df.schema if each.name.lower() == "details"]
    return ["rule", *(["details"] if any(each.metadata == OF_SPLIT for each in details) else [])]


def _of_source(df: DataFrame, given: Mapping[str, object]) -> dict[str, Column]:
    """Return arguments for rows of Kafka's source or pulsar-spark's; none for other columns."""
    kinds = {field.name.lower(): field.dataType for field in df.schema}
    others = kinds.keys() - {each.lower() for each in given.values() if isinstance(each, str)}
    if len(kinds) < len(df.columns) or not isinstance(kinds.get("value"), BinaryType | StringType):
        return {}
    if "__topic" in kinds and others <= {*ALIASES, "__publishtime"}:
        # The columns of the origin stay under their names: headers win over them.
        of_origin = {each.lower() for each in _PULSAR_SPARK.values()}
        return {ALIASES[name]: F.col(name) for name in kinds.keys() & ALIASES.keys() - of_origin}
    if not (others <= set(_KAFKA) and isinstance(kinds.get("key"), BinaryType | StringType)):
        return {}
    found = {"payload": F.col("value"), "key": F.col("key")}
    if isinstance(kinds.get("timestamp"), TimestampType):
        found["event_time"] = F.col("timestamp")
    if place := [name for name in ("topic", "partition", "offset") if name in kinds]:
        found["source"] = F.struct(*place)
    if "headers" in kinds:
        found["headers"] = F.map_from_entries(
            F.transform(
                F.filter("headers", _is_last),
                lambda each: F.struct(each["key"], each["value"].cast("string")),
            )
        )
    return found


def _is_last(header: Column, number: Column) -> Column:
    """Return whether no later header has the name of *header*, because a map has each name once."""
    later = F.slice("headers", number + 2, F.size("headers"))
    return ~F.exists(later, lambda each: each["key"] == header["key"])


def _has(df: DataFrame, name: str) -> bool:
    return _found(df, name) is not None


def _found(df: DataFrame, name: str) -> str | None:
    """Return the column of *name*, in any case; of several, the one that is spelt alike."""
    like_it = [each for each in df.columns if each.lower() == name.lower()]
    return name if name in like_it else next(iter(like_it), None)


def _select(df: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    return df.select(*[column.alias(name) for name, column in columns.items()])


def _column(df: DataFrame, argument: str, value: object) -> Column:
    """Return the column that *value* of *argument* stands for."""
    if isinstance(value, Column):
        return value
    if isinstance(value, list | tuple | dict):  # as a constant, it would be every row's key
        raise ConfigError.bad(argument, value, "one Column or name of a column")
    if not isinstance(value, str):
        return F.lit(value)
    if (found := _found(df, value)) is not None:
        return _named(found)
    if _has(df, value.partition(".")[0]):  # a field of a struct
        return F.col(value)
    if argument in _CONSTANTS and value != argument:
        return F.lit(value)
    raise ConfigError.bad(argument, value, f"a Column, or one of {', '.join(df.columns)}")


def _named(name: str) -> Column:
    """Return the column *name*, whose name may contain dots."""
    return F.col("`" + name.replace("`", "``") + "`")


def _reason(
    reason: Column | str, columns: Mapping[str, Column], kind: DataType
) -> dict[str, Column]:
    """Return the columns that *reason* stands for, without those that other arguments give."""
    column = columns["reason"]
    if isinstance(reason, str) and (slug := READER_COLUMNS.get(reason.lower())):
        return {"reason": F.when(column.isNotNull(), F.lit(slug))}
    if isinstance(kind, StringType):
        return {}
    verdict = Verdict.of(column, kind, "unnamed")
    if verdict is None or verdict.details is None:
        raise ConfigError.bad("reason", reason, _REASONS)
    found = {"details": json_array([verdict])}
    if isinstance(kind, ArrayType):
        found["rule"] = F.when(verdict.failed, verdict.rules)
    left = {name: each for name, each in found.items() if name not in columns}
    return left | {"reason": F.when(verdict.failed, verdict.reason)}


def _of_known_types(
    columns: Mapping[str, Column], kinds: Mapping[str, DataType]
) -> dict[str, Column]:
    """Return those of *columns*, beside the payload, whose types the sink does not take."""
    found = {}
    for name in columns.keys() & {"key", "ordering_key"}:
        found[name] = _message(columns[name], kinds[name])
    for name in columns.keys() & {"not_before", "event_time"}:
        if isinstance(kinds[name], TimestampNTZType):
            found[name] = columns[name].cast("timestamp")
    if isinstance(kinds.get("source"), StructType):
        source = _with_text_keys(columns["source"], kinds["source"])
        found["source"] = F.to_json(source, _JSON | {"ignoreNullFields": "true"})
    return found


def _message(column: Column, kind: DataType) -> Column:
    """Return *column* as a payload or key: binary and text unchanged, structured types as JSON.

    The text of a time is that in JSON: a cast's would depend on the zone of the session.
    """
    is_variant = kind.typeName() == "variant"  # Spark 3.5 has no such type
    if is_variant or isinstance(kind, ArrayType | MapType | StructType):
        return F.to_json(_with_text_keys(column, kind), _JSON)
    if isinstance(kind, TimestampType | TimestampNTZType):
        return _text_in_json(column)
    return column if isinstance(kind, BinaryType) else column.cast("string")


def _text_in_json(column: Column) -> Column:
    return F.get_json_object(F.to_json(F.struct(column.alias("it")), _JSON), "$.it")


def _with_text_keys(column: Column, kind: DataType) -> Column:
    """Return *column* so that the keys of its maps are texts wherever `to_json` has none for them.

    It would write the address of a binary key, which differs each time, and the number of a day.
    """
    if not _has_odd_keys(kind):
        return column
    match kind:
        case MapType():
            if not isinstance(kind.keyType, _TEXT_LIKE):
                column = F.transform_keys(column, lambda key, _: _text_in_json(key))
            return F.transform_values(column, lambda _, each: _with_text_keys(each, kind.valueType))
        case ArrayType():
            return F.transform(column, lambda each: _with_text_keys(each, kind.elementType))
        case StructType():
            fields = [
                _with_text_keys(column[each.name], each.dataType).alias(each.name)
                for each in kind.fields
            ]
            return F.when(column.isNotNull(), F.struct(*fields))
    return column


def _has_odd_keys(kind: DataType) -> bool:
    match kind:
        case MapType():
            return not isinstance(kind.keyType, _TEXT_LIKE) or _has_odd_keys(kind.valueType)
        case ArrayType():
            return _has_odd_keys(kind.elementType)
        case StructType():
            return any(_has_odd_keys(each.dataType) for each in kind)
    return False


def _row(df: DataFrame, named: Iterable[object]) -> Column:
    """Return the row without the *named* columns, or what the reader could not read."""
    corrupt, rescued, metadata = (_found(df, each) for each in (*READER_COLUMNS, "_metadata"))
    left_out = {_found(df, each) for each in named if isinstance(each, str)}
    left_out = (left_out | {corrupt, metadata}) - {rescued}  # the last is data
    fields = [
        _with_text_keys(_named(each.name), each.dataType).alias(each.name)
        for each in df.schema
        if each.name not in left_out
    ]
    if not fields:
        raise ConfigError.bad(
            "payload", None, "a column, because no other column is left for the payload"
        )
    row = F.to_json(F.struct(*fields), _JSON)
    return row if corrupt is None else F.coalesce(F.col(corrupt).cast("string"), row)


def _source(df: DataFrame) -> Column | None:
    """Return a struct with the known origin of the rows of *df*; None if nothing is known."""
    fields = []
    metadata = _metadata(df)
    if "file_path" in metadata:
        fields.append(F.col("_metadata.file_path").alias("file"))
    if "row_index" in metadata:  # Parquet's
        fields.append(F.col("_metadata.row_index").alias("position"))
    return F.struct(*fields) if fields else None


def _metadata(df: DataFrame) -> list[str]:
    """Return the fields of the column `_metadata`, which may be hidden; none if there is none."""
    if (found := _found(df, "_metadata")) is not None:
        kind = df.schema[found].dataType
    elif hides_metadata(df):
        kind = df.select("_metadata").schema[0].dataType
    else:
        return []
    return kind.names if isinstance(kind, StructType) else []

"""Definitions as types, types as columns, and which columns fit which types."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812 - its name everywhere
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.schemas.columns import arrow_type
from pulsar_retry_spark.schemas.registry import TopicSchema, need_fastavro
from pulsar_retry_spark.schemas.rows import check_struct
from pulsar_retry_spark.schemas.tree import parse


def record(*fields: Any, name: str = "Row", **more: Any) -> dict[str, Any]:
    """Return the definition of a record; each field is a name and a type."""
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": each[0], "type": each[1], **dict(each[2:])} for each in fields],
        **more,
    }


def logical(base: str, kind: str, **more: Any) -> dict[str, Any]:
    """Return a logical type."""
    return {"type": base, "logicalType": kind, **more}


#: Avro types and the columns for them, in Spark's words.
TYPES = [
    ("boolean", "boolean"),
    ("int", "int"),
    ("long", "bigint"),
    ("float", "float"),
    ("double", "double"),
    ("string", "string"),
    ("bytes", "binary"),
    ({"type": "fixed", "name": "F", "size": 4}, "binary"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "string"),
    ({"type": "array", "items": ["null", "long"]}, "array<bigint>"),
    ({"type": "map", "values": "double"}, "map<string,double>"),
    (record(("x", "int"), name="Inner"), "struct<x:int>"),
    (logical("int", "date"), "date"),
    (logical("long", "timestamp-millis"), "timestamp"),
    (logical("long", "timestamp-micros"), "timestamp"),
    (logical("long", "local-timestamp-micros"), "timestamp_ntz"),
    (logical("int", "time-millis"), "int"),
    (logical("long", "time-micros"), "bigint"),
    (logical("bytes", "decimal", precision=12, scale=2), "decimal(12,2)"),
    (logical("fixed", "decimal", name="D", size=8, precision=9), "decimal(9,0)"),
    (logical("string", "uuid"), "string"),
    (logical("long", "of somebody's"), "bigint"),
    (["null", "string"], "string"),
    (["int", "null", "long"], "bigint"),
    (["float", "double"], "double"),
    ({"type": {"type": "string"}}, "string"),
]


@pytest.mark.parametrize(("avro", "column"), TYPES, ids=[each for _, each in TYPES])
def test_types_have_columns(avro, column):
    """Those of Spark's own from_avro; Spark gives the same Arrow type back."""
    kind = parse(json.dumps(record(("f", avro))))
    arrow = pa.schema([("value", arrow_type(kind))])
    spark = from_arrow_schema(arrow)
    assert f"struct<f:{column}>" == spark["value"].dataType.simpleString()
    assert arrow.equals(to_arrow_schema(spark, timezone="UTC"))


@pytest.mark.parametrize(("avro", "column"), TYPES, ids=[each for _, each in TYPES])
def test_a_column_that_was_read_can_be_written(avro, column):
    """The column of a type fits this type."""
    kind = parse(json.dumps(record(("f", avro))))
    read = from_arrow_schema(pa.schema([("value", arrow_type(kind))]))
    check_struct(read["value"].dataType, kind, "value")


def test_named_types_are_found_by_their_names():
    """With and without a namespace, and from another one."""
    inner = record(("x", "int"), name="Inner")
    kind = parse(
        json.dumps(record(("a", inner), ("b", "Inner"), ("c", "n.s.Inner"), namespace="n.s"))
    )
    assert [kind.fields[0].type] * 3 == [each.type for each in kind.fields]


@pytest.mark.parametrize(
    ("avro", "text"),
    [
        (["string", "int"], "the field f of the topic's schema is a union of string and int"),
        (["null", "Row"], "the field f of the topic's schema is a Row within a Row"),
        ({"type": "array", "items": ["int", "string"]}, "the field f .* union of int and string"),
        (logical("bytes", "decimal", precision=39), r"the field f .* is a decimal\(39,0\)"),
        (record(name="Empty"), "the field f .* is a record without fields"),
        ("Unknown", "is not an Avro definition: KeyError"),
    ],
)
def test_what_has_no_column_is_named(avro, text):
    """With the path to it."""
    with pytest.raises(ConfigError, match=text):
        parse(json.dumps(record(("f", avro))))


@pytest.mark.parametrize("text", ["", "null", "[", "{}", '{"type": 3}', "3"])
def test_what_is_no_definition_is_refused(text):
    """And raises nothing else."""
    with pytest.raises(ConfigError, match="not an Avro definition"):
        parse(text)


ORDER = record(
    ("id", "long"),
    ("item", ["null", "string"]),
    ("amount", "double", ("default", 0.0)),
    ("at", ["null", logical("long", "timestamp-millis")], ("default", None)),
    ("price", ["null", logical("bytes", "decimal", precision=10, scale=2)]),
    ("tags", ["null", {"type": "map", "values": "int"}]),
    ("lines", ["null", {"type": "array", "items": record(("no", "int"), name="Line")}]),
)


def check(**columns: Any) -> None:
    """Check a struct with these columns against the order."""
    kind = StructType([StructField(name, of) for name, of in columns.items()])
    check_struct(kind, parse(json.dumps(ORDER)), "payload")


@pytest.mark.parametrize(
    "columns",
    [
        {"id": T.LongType()},
        {"item": T.StringType(), "id": T.IntegerType()},
        {"item": T.NullType(), "id": T.ByteType(), "amount": T.IntegerType()},
        {"id": T.LongType(), "price": T.DecimalType(4, 1), "at": T.TimestampType()},
        {"id": T.LongType(), "tags": T.MapType(T.StringType(), T.ShortType())},
        {
            "id": T.LongType(),
            "lines": T.ArrayType(StructType([StructField("no", T.IntegerType())])),
        },
    ],
)
def test_columns_that_fit(columns):
    """In any order, smaller, and without those that the schema does not need."""
    check(**columns)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"item": T.StringType()}, "no column 'payload.id': the topic's schema needs it (long)"),
        ({"itm": T.StringType()}, "column 'payload.itm': did you mean payload.item?"),
        ({"id": T.StringType()}, "column 'payload.id' is string: expected tinyint or smallint"),
        ({"id": T.NullType()}, "column 'payload.id' is always null"),
        ({"at": T.LongType()}, "column 'payload.at' is bigint: expected timestamp"),
        ({"price": T.DecimalType(10, 3)}, "expected at most decimal(10,2)"),
        ({"price": T.DecimalType(11, 2)}, "expected at most decimal(10,2)"),
        ({"tags": T.MapType(T.LongType(), T.LongType())}, "expected texts as keys"),
        ({"tags": T.MapType(T.StringType(), T.LongType())}, "'payload.tags.value' is bigint"),
        (
            {"lines": T.ArrayType(StructType([StructField("number", T.IntegerType())]))},
            "'payload.lines.element.number'",
        ),
    ],
)
def test_columns_that_do_not_fit_are_named(columns, text):
    """Before anything is sent."""
    with pytest.raises(ConfigError) as raised:
        check(**columns)
    assert text in str(raised.value)


def test_a_missing_fastavro_is_named(monkeypatch):
    """JSON does without."""
    monkeypatch.setattr("pulsar_retry_spark.schemas.registry.find_spec", lambda _: None)
    need_fastavro(TopicSchema("JSON", "{}"), "value.decode")
    with pytest.raises(ConfigError, match=r"value.decode: .* needs the package fastavro"):
        need_fastavro(TopicSchema("AVRO", "{}"), "value.decode")


def test_only_equal_schemas_have_one_digest():
    """By which the sink names its producers."""
    schemas = [TopicSchema("AVRO", "{}"), TopicSchema("JSON", "{}"), TopicSchema("AVRO", "[]")]
    assert 3 == len({each.digest for each in schemas})
    assert TopicSchema("AVRO", "{}").digest == schemas[0].digest

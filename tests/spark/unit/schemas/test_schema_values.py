"""Values through codecs: what is encoded comes back, and what can't be decoded fails nothing."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
from decimal import Decimal
from typing import Any

import fastavro
import pulsar
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry_spark.schemas.columns import arrow_type
from pulsar_retry_spark.schemas.decoding import Decoder, Decoding, UndecodableError
from pulsar_retry_spark.schemas.encoding import Encoder
from pulsar_retry_spark.schemas.registry import TopicSchema
from pulsar_retry_spark.schemas.rows import ValueRefusedError


def optional(kind: Any) -> list[Any]:
    """Return the type of a field that may be null."""
    return ["null", kind]


def logical(base: str, kind: str, **more: Any) -> dict[str, Any]:
    """Return a logical type."""
    return {"type": base, "logicalType": kind, **more}


def record(fields: dict[str, Any], name: str = "Row") -> dict[str, Any]:
    """Return the definition of a record."""
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": each, "type": kind} for each, kind in fields.items()],
    }


EVERYTHING = record(
    {
        "flag": optional("boolean"),
        "small": optional("int"),
        "large": "long",
        "ratio": optional("float"),
        "precise": optional("double"),
        "text": optional("string"),
        "raw": optional("bytes"),
        "four": optional({"type": "fixed", "name": "Four", "size": 4}),
        "colour": optional({"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}),
        "day": optional(logical("int", "date")),
        "millis": optional(logical("long", "timestamp-millis")),
        "micros": logical("long", "timestamp-micros"),
        "local": optional(logical("long", "local-timestamp-micros")),
        "clock": optional(logical("int", "time-millis")),
        "fine": optional(logical("long", "time-micros")),
        "price": optional(logical("bytes", "decimal", precision=12, scale=2)),
        "packed": optional(logical("fixed", "decimal", name="D", size=8, precision=15, scale=3)),
        "id": optional(logical("string", "uuid")),
        "numbers": optional({"type": "array", "items": optional("long")}),
        "times": optional({"type": "array", "items": logical("long", "timestamp-millis")}),
        "counts": optional({"type": "map", "values": optional("int")}),
        "inner": optional(record({"x": "int", "y": optional("string")}, "Inner")),
        "many": {"type": "array", "items": "Inner"},
        "wide": ["null", "int", "long"],
    }
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
INT = st.integers(-(1 << 31), (1 << 31) - 1)
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
MOMENT = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(9000, 1, 1))  # noqa: DTZ001
IN_UTC = MOMENT.map(lambda each: each.replace(tzinfo=dt.UTC))
IN_MILLIS = IN_UTC.map(lambda each: each.replace(microsecond=each.microsecond // 1000 * 1000))
INNER = st.fixed_dictionaries({"x": INT, "y": st.none() | TEXT})
HUNDREDTHS = st.integers(-(10**12) + 1, 10**12 - 1).map(lambda each: Decimal(each).scaleb(-2))
THOUSANDTHS = st.integers(-(10**15) + 1, 10**15 - 1).map(lambda each: Decimal(each).scaleb(-3))

ROWS = st.fixed_dictionaries(
    {
        "flag": st.none() | st.booleans(),
        "small": st.none() | INT,
        "large": LONG,
        "ratio": st.none() | st.floats(width=32, allow_nan=False),
        "precise": st.none() | st.floats(allow_nan=False),
        "text": st.none() | TEXT,
        "raw": st.none() | st.binary(max_size=5),
        "four": st.none() | st.binary(min_size=4, max_size=4),
        "colour": st.none() | st.sampled_from(["RED", "BLUE"]),
        "day": st.none() | st.dates(),
        "millis": st.none() | IN_MILLIS,
        "micros": IN_UTC,
        "local": st.none() | MOMENT,
        "clock": st.none() | st.integers(0, 86_399_999),
        "fine": st.none() | st.integers(0, 86_399_999_999),
        "price": st.none() | HUNDREDTHS,
        "packed": st.none() | THOUSANDTHS,
        "id": st.none() | st.uuids().map(str),
        "numbers": st.none() | st.lists(st.none() | LONG, max_size=3),
        "times": st.none() | st.lists(IN_MILLIS, max_size=3),
        "counts": st.none() | st.dictionaries(TEXT, st.none() | INT, max_size=3),
        "inner": st.none() | INNER,
        "many": st.lists(INNER, max_size=2),
        "wide": st.none() | LONG,
    }
)


def schema(definition: Any = EVERYTHING, kind: str = "AVRO") -> TopicSchema:
    """Return a schema of the registry."""
    return TopicSchema(kind, json.dumps(definition))


def column(written: TopicSchema, *rows: Any) -> pa.Array:
    """Return rows as Spark hands them over; maps are pairs to Arrow."""
    pairs = [
        {**row, "counts": list(row["counts"].items())}
        if row and row.get("counts") is not None
        else row
        for row in rows
    ]
    return pa.array(pairs, arrow_type(written.type()))


def decoder(reader: TopicSchema, *versions: TopicSchema, fail_fast: bool = False) -> Decoder:
    """Return a decoder of messages that were written with one of the *versions*."""
    known = dict(enumerate(versions or [reader]))
    return Decoder(Decoding(reader, fail_fast), known.get)


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
@given(rows=st.lists(ROWS, min_size=1, max_size=3))
def test_what_is_encoded_comes_back(kind, rows):
    """Each type, with and without nulls."""
    written = schema(kind=kind)
    given_rows = column(written, *rows)
    encoded = Encoder(written, "payload").encode(given_rows)
    values, errors = decoder(written).columns(encoded.to_pylist(), [0] * len(rows))
    assert [None] * len(rows) == errors.to_pylist()
    assert given_rows.equals(values)


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
@given(payload=st.binary(max_size=60), good=ROWS)
def test_no_bytes_can_fail_a_query(kind, payload, good):
    """Rows beside them are decoded; what has an error has no value."""
    written = schema(kind=kind)
    (whole,) = Encoder(written, "payload").encode(column(written, good)).to_pylist()
    values, errors = decoder(written).columns([whole, payload, None], [0, 0, 0])
    assert values[0].equals(column(written, good)[0])
    assert (None, None, None) == (errors[0].as_py(), errors[2].as_py(), values[2].as_py())
    assert errors[1].as_py() is None or values[1].as_py() is None


@given(row=ROWS)
def test_avro_is_what_fastavro_reads(row):
    """Not only what this package reads."""
    written = schema()
    (payload,) = Encoder(written, "payload").encode(column(written, row)).to_pylist()
    read = fastavro.schemaless_reader(io.BytesIO(payload), fastavro.parse_schema(EVERYTHING))
    assert {"micros": row["micros"], "price": row["price"], "many": row["many"]} == {
        name: read[name] for name in ("micros", "price", "many")
    }


OLD = record({"id": "int", "gone": "string"})
NEW = {
    "type": "record",
    "name": "Other",
    "fields": [
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "shop", "type": "string", "default": "main"},
        {"name": "id", "type": "long"},
    ],
}


def avro(definition: Any, value: Any) -> bytes:
    """Return a value as Avro."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(definition), value)
    return buffer.getvalue()


def test_each_version_is_resolved_to_the_latest():
    """Defaults, another order, removed fields, a wider type and another name of the record."""
    payloads = [avro(OLD, {"id": 1, "gone": "x"}), avro(NEW, {"id": 2, "note": "n", "shop": "s"})]
    values, errors = decoder(schema(NEW), schema(OLD), schema(NEW)).columns(payloads, [0, 1])
    assert [None, None] == errors.to_pylist()
    assert [{"note": None, "shop": "main", "id": 1}, {"note": "n", "shop": "s", "id": 2}] == (
        values.to_pylist()
    )


INNER_DEFAULT = {"raw": "\u00ff", "at": 3, "counts": {"a": 1}}

#: Types that a field may have, its default in the definition, and the value for it.
DEFAULTS = [
    ("bytes", "\u00ffa\u0000", b"\xffa\x00"),
    (["bytes", "null"], "", b""),
    ({"type": "fixed", "name": "Two", "size": 2}, "\u00fe\u00ff", b"\xfe\xff"),
    (logical("bytes", "decimal", precision=4, scale=2), "\u00ff", Decimal("-0.01")),
    (logical("fixed", "decimal", name="D", size=1, precision=2), "\u0007", Decimal(7)),
    ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
    ({"type": "map", "values": "bytes"}, {"a": "\u00ff"}, [("a", b"\xff")]),
    (logical("int", "date"), 1, dt.date(1970, 1, 2)),
    (
        record(
            {
                "raw": "bytes",
                "at": logical("long", "timestamp-millis"),
                "counts": {"type": "map", "values": "int"},
            },
            "Inner",
        ),
        INNER_DEFAULT,
        {
            "raw": b"\xff",
            "at": dt.datetime(1970, 1, 1, 0, 0, 0, 3000, dt.UTC),
            "counts": [("a", 1)],
        },
    ),
]


@pytest.mark.parametrize(("kind", "default", "value"), DEFAULTS)
def test_defaults_are_the_values_that_they_stand_for(kind, default, value):
    """In each row: when an older version is read, and when a struct has no such column."""
    old = record({"id": "int"})
    new = {**old, "fields": [*old["fields"], {"name": "more", "type": kind, "default": default}]}
    payload = avro(old, {"id": 1})

    values, errors = decoder(schema(new), schema(old)).columns([payload] * 3, [0] * 3)
    assert [None] * 3 == errors.to_pylist()
    assert [{"id": 1, "more": value}] * 3 == values.to_pylist()

    without = pa.array([{"id": 1}], pa.struct({"id": pa.int32()}))
    (encoded,) = Encoder(schema(new), "payload").encode(without).to_pylist()
    values, _ = decoder(schema(new)).columns([encoded], [0])
    assert [{"id": 1, "more": value}] == values.to_pylist()

    values, errors = decoder(schema(new, "JSON")).columns([b'{"id": 1}'], [0])
    assert (1, None) == (values[0].as_py()["id"], errors[0].as_py())


def test_a_time_that_was_a_number_has_the_unit_of_the_latest_version():
    """As in Java: an older version may have had a plain long."""
    new = record({"at": logical("long", "timestamp-millis")})
    values, _ = decoder(schema(new), schema(record({"at": "long"}))).columns(
        [avro(record({"at": "long"}), {"at": 1_700_000_000_123})], [0]
    )
    assert dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, dt.UTC) == values[0].as_py()["at"]


def test_json_has_defaults_and_ignores_what_it_does_not_know():
    """As Java's consumers."""
    payloads = [b'{"id": 1, "gone": "x"}', b'{"note": "n"}', b"null"]
    values, errors = decoder(schema(NEW, "JSON")).columns(payloads, [0, 0, 0])
    assert [None] * 3 == errors.to_pylist()
    assert [
        {"note": None, "shop": "main", "id": 1},
        {"note": "n", "shop": "main", "id": None},
        None,
    ] == values.to_pylist()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"large": true}', "TypeError: expected a whole number, not bool"),
        ('{"large": 1.5}', "TypeError: expected a whole number, not Decimal"),
        ('{"large": 9223372036854775808}', "ValueError: a number has no room in 64 bits"),
        ('{"text": 1}', "TypeError: expected str, not int"),
        ('{"raw": "?"}', "Error: "),
        ('{"millis": "2024-01-01T00:00:00"}', "ValueError: a time has a zone where"),
        ("[]", "TypeError: expected dict, not list"),
        ("{", "JSONDecodeError: "),
    ],
)
def test_json_of_other_types_is_an_error_of_its_row(text, error):
    """Nothing is guessed."""
    values, errors = decoder(schema(kind="JSON")).columns([text.encode()], [0])
    assert values[0].as_py() is None
    assert error in errors[0].as_py()


def test_json_may_have_times_as_texts():
    """Jackson writes them if it is told so."""
    text = b'{"millis": "2024-01-01T01:00:00+01:00", "day": "2024-02-29"}'
    values, errors = decoder(schema(kind="JSON")).columns([text], [0])
    assert errors[0].as_py() is None
    assert (dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.date(2024, 2, 29)) == (
        values[0].as_py()["millis"],
        values[0].as_py()["day"],
    )


@pytest.mark.parametrize(
    ("payload", "version", "text"),
    [
        (b"\x02\x02x", None, "the message was written without a schema"),
        (b"\x02\x02x", 7, "the registry has no version 7 of the topic's schema"),
        (b"{}", 1, "the message was written as JSON, not as AVRO"),
        (b"\x02\x02x", 2, "version 2 of the schema: "),
        (b"\x02\x02x!", 0, "ValueError: 1 bytes are left after the value"),
        (b"\x02", 0, "EOFError"),
    ],
)
def test_messages_that_can_not_be_decoded_say_why(payload, version, text):
    """Whatever the reason."""
    versions = [schema(OLD), schema(OLD, "JSON"), TopicSchema("AVRO", '{"type": "?"}')]
    values, errors = decoder(schema(OLD), *versions).columns([payload], [version])
    assert values[0].as_py() is None
    assert errors[0].as_py().startswith(text)


def test_a_value_without_room_is_an_error_of_its_row():
    """An int may be of any size to fastavro."""
    long = avro(record({"id": "long"}), {"id": 1 << 40})
    int_ = schema(record({"id": "int"}))
    values, errors = decoder(int_).columns([avro(record({"id": "int"}), {"id": 3}), long], [0, 0])
    assert [{"id": 3}, None] == values.to_pylist()
    assert errors[0].as_py() is None
    assert errors[1].as_py()


def test_a_query_that_is_to_fail_says_where_and_shows_nothing():
    """The payload may be a secret."""
    with pytest.raises(UndecodableError) as raised:
        decoder(schema(OLD), fail_fast=True).columns([None, b"secret"], [0, 0])
    assert 1 == raised.value.row
    assert "was written with version 0 and can't be decoded" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_broker_that_is_away_is_no_error_of_a_row():
    """Otherwise rows would be null for no reason of theirs."""

    def away(_version):
        raise pulsar.ConnectError

    with pytest.raises(pulsar.ConnectError):
        Decoder(Decoding(schema(OLD)), away).columns([b"x"], [0])


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        ("STRING", "grün".encode(), "grün"),
        ("INT8", b"\xff", -1),
        ("INT16", b"\x01\x00", 256),
        ("INT32", b"\x00\x00\x01\x00", 256),
        ("INT64", b"\xff" * 8, -1),
        ("FLOAT", b"\x3f\x80\x00\x00", 1.0),
        ("DOUBLE", b"\x3f\xf0" + bytes(6), 1.0),
    ],
)
def test_single_values_are_decoded(kind, payload, value):
    """As Java writes them; other lengths are errors."""
    single = TopicSchema(kind, "")
    values, errors = decoder(single).columns([payload, b"\xff\xfe\xfd"], [0, 0])
    assert [value, None] == values.to_pylist()
    assert errors[0].as_py() is None
    assert errors[1].as_py()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"large": None}, "payload.large is null, but the topic's schema needs a value"),
        ({"colour": "GREEN"}, "payload.colour is none of RED, BLUE"),
        ({"four": b"12"}, "payload.four has 2 bytes, but the schema 4"),
        ({"many": [{"x": None, "y": ""}]}, "payload.many.element.x is null"),
    ],
)
@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_rows_that_do_not_fit_are_refused(kind, change, text):
    """With the column's name, and without the value."""
    written = schema(kind=kind)
    row = {"large": 1, "micros": dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "many": []}
    with pytest.raises(ValueRefusedError, match=text):
        Encoder(written, "payload").encode(column(written, {**row, **change}))


def test_json_is_as_java_reads_it():
    """Numbers for times, base64 for bytes, texts for decimals and what is not finite; no nulls."""
    written = schema(kind="JSON")
    row = {
        "large": 1,
        "micros": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC),
        "many": [],
        "raw": b"\xff",
        "price": Decimal("1.50"),
        "precise": math.nan,
        "day": dt.date(1970, 1, 2),
    }
    (payload,) = Encoder(written, "payload").encode(column(written, row)).to_pylist()
    assert {
        "large": 1,
        "micros": 1_000_000,
        "many": [],
        "raw": "/w==",
        "price": "1.50",
        "precise": "NaN",
        "day": 1,
    } == json.loads(payload)


def test_a_null_struct_is_a_tombstone():
    """Also beside others."""
    written = schema(OLD)
    rows = column(written, None, {"id": 1, "gone": "x"})
    assert [None, b"\x02\x02x"] == Encoder(written, "payload").encode(rows).to_pylist()

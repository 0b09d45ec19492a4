"""Payloads as JSON values."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.wire.payloads import codec_of, value_as_json

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "city", "type": ["null", "string"], "default": None},
        {
            "name": "amount",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "seal", "type": {"type": "fixed", "name": "Seal", "size": 2}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "bytes"}}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "any", "type": ["null", "long", "string", "boolean"]},
    ],
}
AVRO = codec_of("AVRO", json.dumps(ORDER))
RECORD: dict[str, Any] = {
    "id": 7,
    "city": "Zoë",
    "amount": Decimal("-12.30"),
    "at": datetime(2026, 1, 31, 12, 0, 0, 5000, UTC),
    "day": None,
    "seal": b"\x00\xff",
    "tags": {"a": [b"x"]},
    "kind": "B",
    "any": "3",
}
VALUE = {
    "id": 7,
    "city": "Zoë",
    "amount": "-12.30",
    "at": "2026-01-31T12:00:00.005000+00:00",
    "day": None,
    "seal": "0x00ff",
    "tags": {"a": ["0x78"]},
    "kind": "B",
    "any": "3",
}


def avro(record: Any, schema: Any = ORDER) -> bytes:
    """Return a record as the clients of Pulsar write it."""
    written = BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), record)
    return written.getvalue()


def test_an_avro_record() -> None:
    """Values that JSON lacks are readable texts."""
    assert VALUE == AVRO.decode(avro(RECORD))
    payload = avro({**RECORD, "day": datetime(2026, 2, 1, tzinfo=UTC).date()})
    assert {**VALUE, "day": "2026-02-01"} == AVRO.decode(payload)


@example(0, b"", Decimal("-1.28"))
@example(2**63 - 1, b"", Decimal(0))  # "for ever"
@given(
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=9),
    st.decimals(-9999999, 9999999, places=2),
)
def test_every_avro_value_is_read(number, data, amount) -> None:
    """Only times in years that Python does not have are refused."""
    payload = avro({**RECORD, "id": number, "at": number, "tags": {"t": [data]}, "amount": amount})
    if not -62_135_596_800_000 <= number < 253_402_300_800_000:
        with pytest.raises(pr.PayloadError, match="does not fit the schema AVRO: OverflowError"):
            AVRO.decode(payload)
        return
    value = AVRO.decode(payload)
    expected = {**VALUE, "id": number, "at": value["at"], "tags": {"t": [f"0x{data.hex()}"]}}
    assert {**expected, "amount": value["amount"]} == value
    assert amount == Decimal(value["amount"])
    assert json.loads(json.dumps(value)) == value


A, B = (
    {"type": "record", "name": name, "fields": [{"name": name, "type": {"type": "long", **more}}]}
    for name, more in (("A", {"logicalType": "timestamp-millis"}), ("B", {}))
)
NOON = datetime(2026, 1, 31, 12, 0, 0, 5000, UTC)


@pytest.mark.parametrize(
    ("schema", "value", "shown"),
    [
        ({"type": "int", "logicalType": "time-millis"}, NOON.time(), "12:00:00.005000"),
        ({"type": "long", "logicalType": "time-micros"}, NOON.time(), "12:00:00.005000"),
        ({"type": "long", "logicalType": "timestamp-micros"}, NOON, NOON.isoformat()),
        ({"type": "string", "logicalType": "uuid"}, UUID(int=7), str(UUID(int=7))),
        (
            {"type": "long", "logicalType": "local-timestamp-millis"},
            NOON.replace(tzinfo=None),
            "2026-01-31T12:00:00.005000",
        ),
        ({"type": "long", "logicalType": "timestamp-nanos"}, 5, 5),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, Decimal(12), "12"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 10},
            Decimal("1E-10"),
            "0.0000000001",
        ),
        ({"type": "array", "items": ["null", "long"]}, [None, 3], [None, 3]),
        (
            {"type": "array", "items": ["null", "string", A, B]},
            ["a", {"B": 5}, {"A": NOON}, None],
            ["a", {"B": 5}, {"A": NOON.isoformat()}, None],
        ),
        ({"type": "map", "values": B}, {"a": {"B": 5}}, {"a": {"B": 5}}),
        (["bytes", {"type": "long", "logicalType": "timestamp-millis"}], b"a", "0x61"),
    ],
)
def test_avro_values_of_each_kind(schema, value, shown) -> None:
    """A value of a union is one of its branch."""
    assert shown == codec_of("AVRO", json.dumps(schema)).decode(avro(value, schema))


LIST = {"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]}
TREE = {
    "type": "record",
    "name": "T",
    "fields": [{"name": "t", "type": {"type": "array", "items": "T"}}],
}


def test_a_payload_that_would_end_the_process() -> None:
    """Neither thousands of levels, nor a few bytes for 2^60 values."""
    for schema in (LIST, TREE, {**LIST, "namespace": "shop"}, {**LIST, "type": "error"}):
        with pytest.raises(pr.PayloadError, match="a record contains itself"):
            codec_of("AVRO", json.dumps(schema)).decode(b"\x02" * 200_000 + b"\x00")
    empty = {
        "type": "record",
        "name": "E",
        "fields": [
            {"name": "a", "type": "null"},
            {"name": "b", "type": {"type": "fixed", "name": "F", "size": 0}},
        ],
    }
    nulls = {"type": "array", "items": "null"}
    named = {"name": "c", "type": {"type": "array", "items": "F"}}
    for schema in (
        {**empty, "fields": [*empty["fields"], named]},
        *(nulls, {"type": "array", "items": {"type": "null"}}, {"type": "map", "values": nulls}),
        *({"type": "array", "items": {**empty, "type": each}} for each in ("record", "error")),
        *(["long", nulls], {**empty, "fields": [{"name": "a", "type": nulls}]}),
    ):
        with pytest.raises(pr.PayloadError, match="no bytes"):
            codec_of("AVRO", json.dumps(schema)).decode(b"\xfe" * 8 + b"\x01\x00")


@pytest.mark.parametrize(
    ("inner", "payload", "value"),
    [
        (B, b"\2\4", {"a": {"B": 1}, "b": {"B": 2}}),
        ({"type": "fixed", "name": "B", "size": 1}, b"ab", {"a": "0x61", "b": "0x62"}),
    ],
)
def test_a_name_may_occur_twice(inner, payload, value) -> None:
    """A record that contains itself is something else."""
    fields = [{"name": "a", "type": inner}, {"name": "b", "type": "B"}]
    schema = {"type": "record", "name": "T", "fields": fields}
    assert value == codec_of("AVRO", json.dumps(schema)).decode(payload)


@pytest.mark.parametrize("payload", [b"", b"\xff" * 40, avro(RECORD) + b"x"])
def test_what_is_no_avro(payload) -> None:
    """Foreign bytes, and more bytes than the record has."""
    with pytest.raises(pr.PayloadError, match="AVRO"):
        AVRO.decode(payload)


@pytest.mark.parametrize("schema", ["NONE", "BYTES"])
def test_bytes_may_be_json(schema) -> None:
    """Nothing says what they are."""
    assert {"a": 1} == codec_of(schema, "").decode(b'{"a":1}')


@pytest.mark.parametrize(
    ("schema", "payload", "value"),
    [
        ("STRING", "Zoë".encode(), "Zoë"),
        ("INT32", b"\x00\x00\x00\x07", 7),
        ("DOUBLE", b"\x3f\xf8" + bytes(6), 1.5),
        ("JSON", b'{"a":1}', {"a": 1}),
    ],
)
def test_other_schemas(schema, payload, value) -> None:
    """Each is read as Pulsar's clients do."""
    codec = codec_of(schema, "")
    assert schema == codec.schema
    assert value == codec.decode(payload)
    with pytest.raises(pr.PayloadError):
        codec.decode(b"\xff\xff\xff")


def test_a_value_as_json_is_laid_out() -> None:
    """For people to read."""
    assert '{\n  "a": "ë"\n}' == value_as_json({"a": "ë"})


@pytest.mark.parametrize(
    ("schema", "definition", "why"),
    [
        ("PROTOBUF_NATIVE", "{}", "PROTOBUF_NATIVE"),
        ("KEY_VALUE", "", "KEY_VALUE"),
        ("AVRO", "{}", "definition"),
    ],
)
def test_schemas_that_are_not_read(schema, definition, why) -> None:
    """The error says why; nothing is guessed."""
    codec = codec_of(schema, definition)
    assert schema == codec.schema
    with pytest.raises(pr.PayloadError, match=why):
        codec.decode(b"x")


def test_a_package_that_is_missing(monkeypatch) -> None:
    """The error names the extra to install."""
    monkeypatch.setitem(__import__("sys").modules, "fastavro", None)
    codec = codec_of("AVRO", json.dumps(ORDER))
    assert "AVRO" == codec.schema
    with pytest.raises(pr.PayloadError, match=r"pulsar-retry\[avro\]"):
        codec.decode(b"x")

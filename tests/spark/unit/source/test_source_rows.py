"""What becomes of a message's parts and properties, whoever wrote them."""

from __future__ import annotations

import json

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from pulsar_retry.wire.properties import (
    SYSTEM_PROPERTIES,
    Origin,
    dead_letter_properties,
    letter_properties,
)
from pulsar_retry_spark.frames.columns import COLUMNS
from pulsar_retry_spark.source.rows import SCHEMA, RowBuffer

NOON = 1_700_000_000_123
CONSTANTS = {"topic": "persistent://public/default/t-s-DLQ", "kind": "dead_letter"}
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@attrs.frozen
class Message:
    """What is read of a `_pulsar.Message`."""

    carried: object = attrs.field(factory=dict)
    content: bytes | None = b"payload"
    key: object = ""
    ordering: object = ""
    published: int = NOON
    happened: int = 0
    version: int = -1

    def int_schema_version(self):
        return self.version

    def properties(self):
        if isinstance(self.carried, Exception):
            raise self.carried
        return dict(self.carried)

    def data(self):
        return self.content or b""

    def has_null_value(self):
        return self.content is None

    def partition_key(self):
        if isinstance(self.key, Exception):
            raise self.key
        return self.key

    def ordering_key(self):
        if isinstance(self.ordering, Exception):
            raise self.ordering
        return self.ordering

    def publish_timestamp(self):
        return self.published

    def event_timestamp(self):
        return self.happened


def rows(*messages, schema=SCHEMA):
    """Return the rows of messages, as dicts; maps as dicts too."""
    buffer = RowBuffer(schema, CONSTANTS)
    for number, message in enumerate(messages):
        buffer.add(message, f"1:{number}:-1")
    taken = buffer.take().to_pylist()
    for row in taken:
        if row.get("headers") is not None:
            row["headers"] = dict(row["headers"])
    return taken


def row(**carried):
    """Return the row of a message with these properties."""
    return rows(Message(carried))[0]


def test_the_schema_is_sparks_to_the_letter():
    """Spark refuses a batch whose Arrow types are others."""
    assert SCHEMA.equals(to_arrow_schema(from_arrow_schema(SCHEMA), timezone="UTC"))


def test_what_was_read_can_be_written():
    """Every column is one of the sink's, of a type that it takes."""
    for field in from_arrow_schema(SCHEMA):
        kind = field.dataType.simpleString()
        assert kind.split("<")[0] in {each.split("<")[0] for each in COLUMNS[field.name]}


def test_every_column_that_can_be_written_is_there():
    """Also those that say nothing of a row that was read, so that SQL may fill them in."""
    assert set(COLUMNS) == set(SCHEMA.names)
    read = row()
    assert [None] * 3 == [read[name] for name in ("action", "retryable", "not_before")]


def test_a_letter_of_the_consumer_is_decoded():
    """Attempt, delay and origin; what has no column is a header."""
    origin = Origin("persistent://public/default/t-partition-1", "3:4:1:5", "s")
    letter = letter_properties({"shop": "7"}, origin, count=2, delay=1.5, retry_topic="again")
    read = row(**letter)
    assert (2, 1500) == (read["attempt"], read["delay_ms"])
    assert ("persistent://public/default/t", "3:4:1:5") == (
        read["origin_topic"],
        read["origin_message_id"],
    )
    assert {"shop": "7", "REAL_SUBSCRIPTION": "s", "RETRY_TOPIC": "again"} == read["headers"]


def test_a_dead_letter_with_a_reason_is_decoded():
    """What its properties say, and no attempt where they do not."""
    origin = Origin("t", "3:4:-1", "s")
    told = {
        "FAILURE_REASON": "bad",
        "FAILURE_ERROR": "ValueError",
        "FAILURE_MESSAGE": "no amount",
    }
    read = row(**dead_letter_properties({}, origin, custom=told))
    assert ("bad", "ValueError", "no amount", None) == (
        read["reason"],
        read["error"],
        read["details"],
        read["attempt"],
    )


def test_a_row_of_the_sink_is_decoded():
    """Stage, rules, source and the id by which duplicates are known."""
    read = row(
        FAILURE_STAGE="parse",
        FAILURE_RULE="a,b",
        FAILURE_SOURCE='{"file": "s3://x", "position": 7}',
        DEDUPE_ID="d1",
        REDRIVE_COUNT="1",
    )
    assert ("parse", ["a", "b"], "d1") == (read["stage"], read["rule"], read["dedupe_id"])
    assert {"file": "s3://x", "position": 7} == {k: v for k, v in read["source"].items() if v}
    assert {"REDRIVE_COUNT": "1"} == read["headers"]


@pytest.mark.parametrize(
    ("carried", "origin"),
    [
        ({"ORIGIN_MESSAGE_ID": "1:2:-1"}, "1:2:-1"),
        ({"ORIGIN_MESSAGE_IDY_TIME": "1:2:-1"}, "1:2:-1"),
        ({"ORIGIN_MESSAGE_ID": "1:2:-1", "ORIGIN_MESSAGE_IDY_TIME": "1:2:-1"}, "1:2:-1"),
        ({"ORIGIN_MESSAGE_ID": "(1,2,-1,-1)"}, "1:2:-1"),
        ({"ORIGIN_MESSAGE_ID": "(1,2,0,3)"}, "1:2:0:3"),
        ({"ORIGIN_MESSAGE_ID": "(what,ever"}, "(what,ever"),
    ],
)
def test_any_clients_origin_is_read(carried, origin):
    """Java's misspelling, and the C++ client's own way to print an id."""
    read = row(**carried)
    assert origin == read["origin_message_id"]
    assert {} == read["headers"]


@pytest.mark.parametrize(
    "carried",
    [
        {"RECONSUMETIMES": "lots"},
        {"RECONSUMETIMES": "-1"},
        {"RECONSUMETIMES": ""},
        {"RECONSUMETIMES": "+"},
        {"RECONSUMETIMES": "٣"},  # a digit, but not Java's
        {"DELAY_TIME": "9223372036854775808"},
        {"DELAY_TIME": "1.5"},
        {"DELAY_TIME": "+5"},
        {"FAILURE_SOURCE": "not JSON"},
        {"FAILURE_SOURCE": "[]"},
        {"FAILURE_SOURCE": '{"table": "t"}'},
        {"FAILURE_SOURCE": '{"position": "7"}'},
        {"FAILURE_SOURCE": '{"position": 7.5}'},
        {"FAILURE_SOURCE": '{"partition": 2147483648}'},
        {"FAILURE_SOURCE": '{"file": "\\ud800"}'},
        {"FAILURE_SOURCE": "[" * 100_000},
    ],
)
def test_what_can_not_be_decoded_stays_a_header(carried):
    """Nothing is lost and nothing fails."""
    read = row(**carried)
    assert carried == read["headers"]
    assert read["attempt"] is read["delay_ms"] is read["source"] is None


@given(
    st.dictionaries(
        st.sampled_from(
            [*sorted(SYSTEM_PROPERTIES), "FAILURE_REASON", "FAILURE_SOURCE", "FAILURE_RULE", "own"]
        ),
        TEXT | st.integers().map(str) | st.just('{"offset": 1}'),
    )
)
def test_every_property_is_somewhere(carried):
    """Whatever is in them: each is a header or has a column."""
    read = row(**carried)
    columns = {
        "RECONSUMETIMES": "attempt",
        "DELAY_TIME": "delay_ms",
        "REAL_TOPIC": "origin_topic",
        "FAILURE_REASON": "reason",
        "FAILURE_SOURCE": "source",
        "FAILURE_RULE": "rule",
    }
    origins = {"ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_IDY_TIME"}
    for name, text in carried.items():
        if name in origins:
            either = {carried.get(each) for each in origins}
            assert read["origin_message_id"] in either
        elif name in columns and read[columns[name]] is not None:
            assert name not in read["headers"]
        else:
            assert text == read["headers"][name]


def test_properties_that_are_no_utf8_cost_no_row():
    """pulsar-client can't give any of them then; the others' rows have theirs."""
    broken = Message(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"))
    before, between, after = rows(Message({"a": "1"}), broken, Message({"b": "2"}))
    assert [{"a": "1"}, None, {"b": "2"}] == [r["headers"] for r in (before, between, after)]
    assert (b"payload", None) == (between["payload"], between["attempt"])


def test_keys_and_times_are_read_where_there_are_any():
    """pulsar-client says "" and 0 where there are none."""
    (read,) = rows(Message(key="", happened=0))
    assert (None, None) == (read["key"], read["event_time"])
    (read,) = rows(Message(key="k", happened=NOON))
    assert ("k", NOON) == (read["key"], round(read["event_time"].timestamp() * 1000))
    (read,) = rows(Message(key=UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no")))
    assert "/w==" == read["key"]  # base64, as the sink writes such bytes


@pytest.mark.parametrize(
    ("ordering", "read"),
    [
        ("", None),
        ("ö", "ö".encode()),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"), b"\xff"),
    ],
)
def test_ordering_keys_are_bytes(ordering, read):
    """Any are, and nothing tells texts from others, so none is changed."""
    assert read == rows(Message(ordering=ordering))[0]["ordering_key"]


def test_times_beyond_all_calendars_are_null():
    """Java may write any long there, and Python can't show the year 10000."""
    (read,) = rows(Message(happened=2**63, published=2**64 - 1))
    assert (None, None) == (read["event_time"], read["publish_time"])


def test_a_tombstone_is_null_and_an_empty_payload_is_not():
    """They are two things."""
    tombstone, empty = rows(Message(content=None), Message(content=b""))
    assert (None, b"") == (tombstone["payload"], empty["payload"])


def test_only_the_columns_that_are_wanted_are_built():
    """In the order that is wanted."""
    wanted = pa.schema([SCHEMA.field(name) for name in ("headers", "topic", "payload")])
    (read,) = rows(Message({"a": "1", "FAILURE_REASON": "bad"}), schema=wanted)
    assert ["headers", "topic", "payload"] == list(read)
    assert {"a": "1"} == read["headers"]


def test_a_buffer_begins_anew():
    """Each batch has its own rows and headers."""
    buffer = RowBuffer(SCHEMA, CONSTANTS)
    for number in range(3):
        buffer.add(Message({"n": str(number)}), f"1:{number}:-1")
        taken = buffer.take()
        assert 1 == taken.num_rows
        assert [[("n", str(number))]] == taken.column("headers").to_pylist()
        assert [f"1:{number}:-1"] == taken.column("message_id").to_pylist()


def test_a_source_is_read_as_it_was_written():
    """By the names that `failures` gives its fields."""
    source = {"file": "f", "position": 1, "topic": "t", "partition": 2, "offset": 2**40}
    assert source == row(FAILURE_SOURCE=json.dumps(source))["source"]


def test_a_message_without_a_schema_has_no_version():
    """Others have the number of theirs."""
    buffer = RowBuffer(pa.schema([SCHEMA.field("schema_version"), SCHEMA.field("key")]), CONSTANTS)
    for each in (Message(version=3), Message()):
        buffer.add(each, "1:0:-1")
    assert {"schema_version": [3, None], "key": [None, None]} == buffer.take().to_pydict()

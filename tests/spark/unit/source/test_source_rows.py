"""What becomes of a message's parts and properties, whoever wrote them."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from pulsar_retry.wire.properties import (
    SYSTEM_PROPERTIES,
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


def rows(*messages):
    """Return the rows of messages, as dicts; maps as dicts too."""
    buffer = RowBuffer(CONSTANTS)
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


def test_keys_and_times_are_read_where_there_are_any():
    """pulsar-client says "" and 0 where there are none."""
    (read,) = rows(Message(key="", happened=0))
    assert (None, None) == (read["key"], read["event_time"])
    (read,) = rows(Message(key="k", happened=NOON))
    assert ("k", NOON) == (read["key"], round(read["event_time"].timestamp() * 1000))
    (read,) = rows(Message(key=UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no")))
    assert "/w==" == read["key"]  # base64, as the sink writes such bytes


def test_times_beyond_all_calendars_are_null():
    """Java may write any long there, and Python can't show the year 10000."""
    (read,) = rows(Message(happened=2**63, published=2**64 - 1))
    assert (None, None) == (read["event_time"], read["publish_time"])


def test_a_buffer_begins_anew():
    """Each batch has its own rows and headers."""
    buffer = RowBuffer(CONSTANTS)
    for number in range(3):
        buffer.add(Message({"n": str(number)}), f"1:{number}:-1")
        taken = buffer.take()
        assert 1 == taken.num_rows
        assert [[("n", str(number))]] == taken.column("headers").to_pylist()
        assert [f"1:{number}:-1"] == taken.column("message_id").to_pylist()

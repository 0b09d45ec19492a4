"""What becomes of a message's parts and properties: by Python, and by the extension module."""

from __future__ import annotations

import json

import pytest
from _pulsar import MessageBuilder
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from pulsar_retry.native.loading import native_rows
from pulsar_retry.wire.properties import origin_message_id
from pulsar_retry_spark.frames.columns import COLUMNS
from pulsar_retry_spark.source.rows import PROPERTIES, SCHEMA, RowBuffer, block

CONSTANTS = {"topic": "persistent://public/default/t-s-DLQ", "kind": "dead_letter"}
MODULE = native_rows().module
END = (2**62, 0, 0)
MANY = (1_000, 1 << 30)  # rows and bytes of a block

of_module = pytest.mark.skipif(MODULE is None, reason="rows are read in Python here")

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ODD = {
    "RECONSUMETIMES": ["0", "7", "x", "-1", "99999999999"],
    "DELAY_TIME": ["0", "1500", "soon", "1.5"],
    "FAILURE_RULE": ["a", "a,b", '["a,b"]', '["\\ud800"]', "[", ""],
    "FAILURE_SOURCE": ['{"file": "f"}', '{"other": 1}', "no", json.dumps({"position": 2**40})],
    "ORIGIN_MESSAGE_ID": ["", "1:2:3", "(1,2,3,-1)", "(x)"],
    "ORIGIN_MESSAGE_IDY_TIME": ["", "1:2:3", "(1,2,3,4)"],
}
PAIRS = st.one_of(
    st.tuples(TEXT, TEXT),
    st.tuples(st.sampled_from(PROPERTIES), TEXT),
    *(st.tuples(st.just(name), st.sampled_from(values)) for name, values in ODD.items()),
)


def message(properties, content=b"payload", **values):
    """Return a raw message that was not published."""
    builder = MessageBuilder()
    if content is None:
        builder.set_null_value()
    else:
        builder.content(content)
    builder.properties(properties)
    for name, value in values.items():
        getattr(builder, name)(value)
    return builder.build()


def row(raw):
    """Return the row of a raw message, which is the same by Python and by the module."""
    buffer = RowBuffer(CONSTANTS)
    buffer.add(raw, "-1:-1:-1")
    batch = buffer.take()
    assert 0 == len(buffer._rows) == len(buffer._names)
    if MODULE is not None:
        reading = MODULE.Reading(-1, END, -1, -1, PROPERTIES, *MANY)
        reading.hold(raw)
        assert ((-1, -1, -1), 0, "-1:-1:-1") == reading.held()
        reading.settle(True)
        assert (None, (1, False)) == (reading.held(), reading.rows())
        module = block(reading.take(), CONSTANTS)
        module.validate(full=True)
        assert batch.to_pylist() == module.to_pylist()
        assert batch.schema.equals(module.schema)
        assert (0, False) == reading.rows()
    (read,) = batch.to_pylist()
    return read | {"headers": None if read["headers"] is None else dict(read["headers"])}


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
    read = row(message({}))
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
    read = row(message(carried))
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
    read = row(message(carried))
    assert carried == read["headers"]
    assert read["attempt"] is read["delay_ms"] is read["source"] is None


@pytest.mark.parametrize("text", ['["\\ud800"]', '["a", 1]', '[["a"]]', "[" * 100_000])
def test_rules_that_are_no_list_of_texts_are_one_rule(text):
    """Whatever another client has written, it does not make a query fail."""
    read = row(message({"FAILURE_RULE": text}))
    assert (text.split(","), {}) == (read["rule"], read["headers"])


@given(st.dictionaries(TEXT, TEXT, max_size=3), st.lists(PAIRS, max_size=8))
def test_every_property_is_somewhere(headers, pairs):
    """Whatever is in them: each is a header or has a column."""
    carried = headers | dict(pairs)
    read = row(message(carried))
    columns = {
        "RECONSUMETIMES": "attempt",
        "DELAY_TIME": "delay_ms",
        "REAL_TOPIC": "origin_topic",
        "FAILURE_REASON": "reason",
        "FAILURE_ERROR": "error",
        "FAILURE_MESSAGE": "details",
        "FAILURE_STAGE": "stage",
        "FAILURE_SOURCE": "source",
        "FAILURE_RULE": "rule",
        "DEDUPE_ID": "dedupe_id",
    }
    origins = ("ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_IDY_TIME")
    for name, text in carried.items():
        if name in origins:
            assert read["origin_message_id"] == origin_message_id(carried)
        elif name in columns and read[columns[name]] is not None:
            assert name not in read["headers"]
        else:
            assert text == read["headers"][name]


@given(st.lists(st.lists(PAIRS, max_size=8), min_size=2, max_size=5))
@example([[("ORIGIN_MESSAGE_IDY_TIME", "")], [("ORIGIN_MESSAGE_ID", "(1,2,3,-1)")]])
def test_a_row_is_the_same_whatever_is_beside_it(rows):
    """Columns are decoded at once for all rows of a batch."""
    buffer, expected = RowBuffer(CONSTANTS), []
    for pairs in rows:
        raw = message(dict(pairs))
        buffer.add(raw, "-1:-1:-1")
        expected.append(row(raw))
    read = buffer.take().to_pylist()
    assert expected == [each | {"headers": dict(each["headers"])} for each in read]


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (message({}, None), {"payload": None}),
        (message({}, b""), {"payload": b"", "key": None, "ordering_key": None, "event_time": None}),
        (message({}, partition_key="ü", ordering_key="o"), {"key": "ü", "ordering_key": b"o"}),
        # Base64, as the sink writes such bytes.
        (
            message({}, partition_key=b"\xff", ordering_key=b"\xff"),
            {"key": "/w==", "ordering_key": b"\xff"},
        ),
        (message({b"\xff": "x"}), {"headers": None, "attempt": None}),
        # Java may write any long, and Python can't show the year 10000.
        (message({}, event_timestamp=2**63), {"event_time": None}),
        (message({}, event_timestamp=253_402_300_800_000), {"event_time": None}),
    ],
)
def test_the_rest_of_a_message(raw, wanted):
    """Payload, keys and times, where there are any: pulsar-client says "" and 0 if not."""
    assert wanted.items() <= row(raw).items()


@pytest.mark.parametrize("moment", [1, 253_402_300_799_999])
def test_times_are_read(moment):
    """To the millisecond."""
    assert moment == round(
        row(message({}, event_timestamp=moment))["event_time"].timestamp() * 1000
    )


@of_module
@pytest.mark.parametrize("limits", [(1, 1 << 30), (1_000, 6)])
def test_a_block_is_limited_however_its_messages_come(limits):
    """Rows and bytes of a message that was waited for count as those of the others."""
    reading = MODULE.Reading(0, END, -1, -1, (), *limits)
    reading.hold(message({}, b"x" * 6))
    reading.settle(False)  # it is no row
    assert (0, False) == reading.rows()
    reading.hold(message({}, b"x" * 6))
    reading.settle(True)
    assert (1, True) == reading.rows()
    assert 1 == reading.take()[0]

"""Rows that the extension module has read, compared with those that Python makes."""

from __future__ import annotations

import json

import pytest
from _pulsar import MessageBuilder
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.native.loading import native_rows
from pulsar_retry_spark.source.rows import PROPERTIES, Block, RowBuffer

CONSTANTS = {"topic": "persistent://public/default/t-s-DLQ", "kind": "dead_letter"}
MODULE = native_rows().module
END = (2**62, 0, 0)
MANY = (1_000, 1 << 30)  # rows and bytes of a block

pytestmark = pytest.mark.skipif(MODULE is None, reason="rows are read in Python here")

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ODD = {
    "RECONSUMETIMES": ["0", "7", "x", "-1", "99999999999"],
    "DELAY_TIME": ["0", "1500", "soon", "1.5"],
    "FAILURE_RULE": ["a", "a,b", '["a,b"]', "[", ""],
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


def both(raw):
    """Return the record batches of a message, by Python and by the module."""
    buffer = RowBuffer(CONSTANTS)
    buffer.add(raw, "-1:-1:-1")
    reading = MODULE.Reading(-1, None, None, END, -1, PROPERTIES, *MANY)
    assert 1 == reading.add(raw)
    assert 1 == reading.rows()
    return buffer.take(), Block(reading.take(), CONSTANTS).take()


@given(st.dictionaries(TEXT, TEXT, max_size=3), st.lists(PAIRS, max_size=8))
def test_the_rows_are_those_of_python(headers, pairs):
    """Whatever the properties are, valid for their columns or not."""
    python, module = both(message(headers | dict(pairs)))
    module.validate(full=True)
    assert python.to_pylist() == module.to_pylist()
    assert python.schema.equals(module.schema)


@pytest.mark.parametrize(
    "raw",
    [
        message({}, None),
        message({}, b""),
        message({}, partition_key="ü", ordering_key="o"),
        message({}, event_timestamp=1),
        message({}, event_timestamp=2**63),
        message({}, event_timestamp=253_402_300_799_999),
        message({}, event_timestamp=253_402_300_800_000),
    ],
)
def test_the_rest_of_a_message(raw):
    """Payload, keys and times."""
    python, module = both(raw)
    assert python.to_pylist() == module.to_pylist()


def test_a_block_begins_anew():
    """Each has its own rows."""
    reading = MODULE.Reading(0, None, None, END, -1, PROPERTIES, *MANY)
    reading.add(message({"a": "1"}))
    assert 1 == reading.take()[0]
    assert (0, (-1, -1, -1)) == (reading.rows(), reading.position())


def test_where_reading_ends():
    """At the end, behind it, too late, before the first message, or not yet."""
    raw = message({})
    at, before = (-1, -1, -1), (-2, 0, 0)
    for first, end, until, status in [
        (None, at, -1, 2),
        (None, before, -1, 3),
        (before, END, -1, 5),
        (at, END, 0, 1),
    ]:
        assert status == MODULE.Reading(0, None, first, end, until, (), *MANY).add(raw)
    again = MODULE.Reading(0, at, None, END, -1, (), *MANY)
    assert (1, 0) == (again.add(raw), again.rows())  # it was read before


@pytest.mark.parametrize("limits", [(1, 1 << 30), (1_000, 6)])
def test_a_block_is_limited_however_its_messages_come(limits):
    """Rows and bytes of a message that was waited for count as those of the others."""
    reading = MODULE.Reading(0, None, None, END, -1, (), *limits)
    assert 0 == reading.add(message({}, b"x" * 6))
    assert 1 == reading.take()[0]

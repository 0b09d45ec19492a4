"""Columns as what messages are made of: the names of rules, there and back."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry_spark.frames.decoding import MAX_TEXT, join_rules, split_rules
from pulsar_retry_spark.frames.json_values import json_values, to_json

NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(st.lists(NAME | st.sampled_from([",", "a,b", "[", '["a"]', "[]"]), min_size=1))
def test_rules_come_back(rules):
    """Whatever their names are."""
    assert rules == split_rules(join_rules(rules))


def test_rules_are_read_by_other_clients_too():
    """Commas between are enough where no name has one."""
    assert "a,b" == join_rules(["a", "b"])
    assert '["a,b", "c"]' == join_rules(["a,b", "c"])


@given(st.lists(NAME, min_size=400, max_size=600))
def test_of_too_many_rules_the_first_ones_travel(rules):
    """Each whole."""
    text = join_rules(rules)
    assert len(text) <= MAX_TEXT
    assert split_rules(text) == rules[: len(split_rules(text))]


@pytest.mark.parametrize("text", ["[a", "[1]", "[" * 100_000, '{"a": 1}'])
def test_what_is_no_list_of_rules_is_one_rule(text):
    """It was a text of the user's own."""
    assert [text] == split_rules(text)


DAY = 86_400 * 10**6  # microseconds
LATE, EARLY = 3_000_000, -800_000  # days from 1970: in the years 10183 and -221


@pytest.mark.parametrize(
    ("late", "same"),
    [
        (pa.array([LATE * DAY, 0], pa.timestamp("us", "UTC")), datetime(1970, 1, 1, tzinfo=UTC)),
        (pa.array([LATE * DAY, 0], pa.timestamp("us")), datetime(1970, 1, 1)),  # noqa: DTZ001
        (pa.array([LATE, 0], pa.date32()), date(1970, 1, 1)),
    ],
)
def test_years_beyond_9999_are_texts(late, same):
    """Alone, and within other values; the other rows are as usual."""
    moment = json_values(late)[0]
    assert moment in {"10183-09-21 00:00:00+00:00", "10183-09-21 00:00:00", "10183-09-21"}
    structs = pa.StructArray.from_arrays([late, pa.array([None, "x"])], ["a", "b"])
    lists = pa.ListArray.from_arrays([0, 1, 2], late)
    maps = pa.MapArray.from_arrays([0, 1, 2], pa.array(["k", "l"]), late)
    assert [moment, same] == json_values(late)
    assert [{"a": moment, "b": None}, {"a": same, "b": "x"}] == json_values(structs)
    assert [[moment], [same]] == json_values(lists)
    assert [{"k": moment}, {"l": same}] == json_values(maps)
    assert {"t": str(same)} == json.loads(to_json({"t": json_values(late)[1]}))


def test_years_before_the_first_are_texts():
    """A null among them stays a null."""
    zoned = pa.array([EARLY * DAY, None], pa.timestamp("us", "Europe/Berlin"))
    text, nothing = json_values(zoned)
    assert text.startswith("-0221-09-04 00:5")
    assert nothing is None

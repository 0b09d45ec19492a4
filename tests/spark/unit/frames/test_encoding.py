"""Columns as what messages are made of: the names of rules, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry_spark.frames.encoding import MAX_TEXT, join_rules, split_rules

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

"""Offsets in checkpoints."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry import ConfigError
from pulsar_retry_spark.source.positions import END, LATEST, MessagePosition, from_offset, to_offset

IDS = st.integers(0, 2**63 - 1)
POSITIONS = st.builds(MessagePosition, IDS, st.integers(-1, 2**40), st.integers(-1, 2**31))


@given(st.dictionaries(st.text(min_size=9), POSITIONS), st.sampled_from([{}, LATEST]))
def test_offsets_are_read_as_they_were_written(positions, marks):
    """And one state has one text, which is what Spark compares."""
    offset = to_offset(positions, marks)
    text = json.dumps(offset)
    assert positions == from_offset(json.loads(text))
    assert text == json.dumps(to_offset(dict(reversed(positions.items())), marks))
    assert all(each < END for each in positions.values())
    assert marks == {key: value for key, value in offset.items() if key in LATEST}


@pytest.mark.parametrize("text", ["", "1:2", "1:2:3:4", "a:b:c", "1:2:-2", "1:2:3\n", 7, None])
def test_a_foreign_checkpoint_is_refused(text):
    """Rather than read from a made-up place."""
    with pytest.raises(ConfigError, match="expected an offset in the form ledger:entry:batch"):
        from_offset({"persistent://public/default/t": text})


def test_looking_back_stays_in_the_ledger():
    """Before its first entry there is nothing that an id could say."""
    assert MessagePosition(7, 14) == MessagePosition(7, 30, 2).back(16)
    assert MessagePosition(7, 0) == MessagePosition(7, 3).back(16)

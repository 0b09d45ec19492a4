"""Letters as rows of a CSV file, which anybody may have written."""

from __future__ import annotations

import csv

import pytest

from pulsar_retry.ops.rows import as_csv


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-2+3", "'-2+3"),
        ("+1-1", "'+1-1"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("\uff1d1", "'\uff1d1"),
        ("-2.5e3", "-2.5e3"),
        ("+49", "+49"),
        ('a=1,"b"\n', 'a=1,"b"\n'),
        ("", ""),
        (None, ""),
    ],
)
def test_no_cell_is_a_formula(written, read) -> None:
    """A spreadsheet would carry it out; numbers and other texts stay as they are."""
    lines = as_csv([{"key": written, "payload": written, "properties": {"a": "=1"}}])
    (row,) = csv.DictReader(lines)
    assert (read, read) == (row["key"], row["payload"])
    assert '{"a": "=1"}' == row["properties"]
    assert "" == row["attempt"]


def test_values_are_json_in_their_cells() -> None:
    """They stay readable, and each letter is one row."""
    letters = [{"key": str(each), "value": {"city": "Zoë"}} for each in range(2)]
    rows = [*csv.DictReader(as_csv(letters))]
    assert [("", "0", '{"city": "Zoë"}'), ("", "1", '{"city": "Zoë"}')] == [
        (row["published"], row["key"], row["value"]) for row in rows
    ]
    assert [] == [*csv.DictReader(as_csv([]))]

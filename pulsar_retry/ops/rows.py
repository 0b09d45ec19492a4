"""Dead letters as the rows of a CSV file."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_COLUMNS = (
    *("published", "event_time", "failed"),
    *("topic", "message_id", "key", "reason", "error", "message", "traceback", "fingerprint"),
    *("stage", "origin_topic", "subscription", "origin_message_id", "properties"),
    *("attempt", "redrives", "payload", "payload_base64"),
    *("schema", "value", "problem"),  # only letters with a schema have these
)
#: What a spreadsheet takes for a formula, and what of that is only a number.
_FORMULA = re.compile(r"[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def _texts_of(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return what is JSON in a cell of a table."""
    names = facts.keys() & {"properties", "value"}
    return {name: json.dumps(facts[name], ensure_ascii=False) for name in names}


def as_csv(letters: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a CSV file, the names of the columns first.

    A text that a spreadsheet would take for a formula has ``'`` in front of it.

    Args:
        letters: The values of letters, as `ops.showing.facts_of` returns them.
    """
    line = io.StringIO()
    writer = csv.DictWriter(line, _COLUMNS)
    writer.writeheader()
    for each in letters:
        yield line.getvalue()
        line.seek(0)
        line.truncate()
        writer.writerow({name: _inert(cell) for name, cell in {**each, **_texts_of(each)}.items()})
    yield line.getvalue()


def _inert(cell: Any) -> Any:
    is_formula = isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell

"""The table of docs/compatibility.md, which runs of tox write."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import attrs

from support.compatibility import PAGE, Run, written

ROOT = Path(__file__).parents[2]
RUN = Run("py312", "-", "3.13.0", "3.12.1", "-", ("tests/unit",), 7, 0, 0, "2026-01-31")
EMPTY = """<!-- runs: begin -->
| environment | Pulsar |
| --- | --- |
<!-- runs: end -->
"""


def environments() -> set[str]:
    """Return the environments of tox.ini, with each of the names in braces."""
    found = set()
    text = (ROOT / "tox.ini").read_text("utf-8")
    for name in re.findall(r"^\[testenv:([^\]]+)\]", text, re.MULTILINE):
        parts = [part.split(",") for part in re.split(r"[{}]", name)]
        found |= {"".join(each) for each in itertools.product(*parts)}
    return found


def test_a_run_replaces_the_row_of_its_environment() -> None:
    """The others stay, and the table is sorted."""
    other = attrs.evolve(RUN, environment="client39", client="3.9.0", skipped=2, failed=1)
    page = written(written(EMPTY, RUN), other)
    again = written(page, attrs.evolve(RUN, passed=8))
    row = "| [`py312`](../tox.ini) | - | 3.13.0 | 3.12.1 | - | `unit` | 7 passed | 2026-01-31 |"
    assert [
        row.replace("py312", "client39")
        .replace("3.13.0", "3.9.0")
        .replace("7 passed", "7 passed, 2 skipped, **1 failed**"),
        row.replace("7 passed", "8 passed"),
    ] == again.splitlines()[3:-1]


def test_each_row_is_of_an_environment_that_exists() -> None:
    """And each says what was run."""
    rows = re.findall(r"^\| \[`(\S+)`\]\(\.\./tox\.ini\) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert rows
    assert set(rows) <= environments()
    assert {"unit", "pulsar29", "pulsar40", "spark35"} <= environments()

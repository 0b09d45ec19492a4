"""Writes the column of the installed Spark into the table of versions: `--write-versions`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pyspark
import pytest

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "spark.md"

_RELEASE = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

#: The table, between these two lines.
_TABLE = re.compile(r"(<!-- versions: begin -->\n).*?(<!-- versions: end -->)", re.DOTALL)

#: From what says the least about a feature to what says the most.
_RANK = ["", "no", "yes", "fails"]

_OUTCOMES = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Have `--write-versions`."""
    text = "write the column of the installed Spark into docs/reference/spark.md"
    parser.addoption("--write-versions", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Begin with nothing. A column needs all tests."""
    config.stash[_OUTCOMES] = {}
    if config.getoption("--write-versions"):
        config.option.nightly = True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Remember whether each feature works, is refused with a message, or does not exist."""
    report = yield
    mark = item.get_closest_marker("feature")
    if mark is None or (report.passed and report.when != "call"):
        return report
    outcome = "no" if report.skipped else "yes" if report.passed else "fails"
    outcomes = item.config.stash[_OUTCOMES]
    # Several tests may be of one feature, and one that fails counts.
    outcomes[mark.args[0]] = max(outcome, outcomes.get(mark.args[0], ""), key=_RANK.index)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the column."""
    if session.config.getoption("--write-versions", default=False):
        page = PAGE.read_text("utf-8")
        column = ".".join(map(str, _RELEASE))
        PAGE.write_text(written(page, column, session.config.stash[_OUTCOMES]), "utf-8")


def written(page: str, column: str, outcomes: Mapping[str, str]) -> str:
    """Return *page* with the *outcomes* of features in the *column* of its table."""
    found = _TABLE.search(page)
    assert found is not None
    lines = [line for line in found[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    columns = cells[0][1:]
    rows = {row[0]: dict(zip(columns, row[1:], strict=True)) for row in cells[2:]}
    for feature, outcome in outcomes.items():
        rows.setdefault(feature, {})[column] = outcome
    columns = sorted({*columns, column})
    table = [["", *columns], ["---"] * (len(columns) + 1)]
    table += [[name, *(row.get(each, "") for each in columns)] for name, row in rows.items()]
    text = "".join(f"| {' | '.join(row)} |\n" for row in table)
    return _TABLE.sub(lambda match: f"{match[1]}{text}{match[2]}", page)

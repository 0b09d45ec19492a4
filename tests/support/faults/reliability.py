"""The fault table of docs/reliability.md: each test of a fault enters a row, and a run writes them.

A pytest plugin, loaded by tests/conftest.py. A test uses the fixture `fault` and reports what it
found; the fixture also asserts that nothing is lost and that duplicates are within their bound.
``--write-reliability`` replaces the rows of the tests that have run in the page, and does not
change the rows of other tests.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs
import pytest

from support.faults.ledger import Account

PAGE = Path(__file__).parents[3] / "docs" / "reliability.md"
BEGIN, END = "<!-- rows: begin -->", "<!-- rows: end -->"
_PROPERTY = "fault"
_COLUMNS = ("Fault", "Messages", "Duplicates", "Recovery", "Test")
_ROWS = pytest.StashKey[list["Row"]]()


@attrs.frozen
class Row:
    """One line of the table.

    Attributes:
        fault: What goes wrong.
        messages: How many messages were counted.
        lost: How many of them are lost.
        duplicates: How many duplicates there were: completions beyond the first.
        bound: How many duplicates there may be.
        recovery: Seconds from the end of the fault until every message had ended.
        test: The name of the test.
    """

    fault: str
    messages: int
    lost: int
    duplicates: int
    bound: int
    recovery: float
    test: str

    def line(self) -> str:
        """Return the row as Markdown. No message is lost: `Fault.survived` asserts it."""
        cells = (
            self.fault,
            self.messages,
            self.duplicates,
            f"{self.recovery:.1f} s",
            f"`{self.test}`",
        )
        return "| " + " | ".join(map(str, cells)) + " |"


class Fault:
    """The report of a test about its fault."""

    def __init__(self, node: pytest.Item) -> None:
        self._node = node
        self._over: float | None = None

    def is_over(self) -> None:
        """Begin to measure the recovery: the fault has happened, or has ended."""
        self._over = time.monotonic()

    def survived(self, fault: str, account: Account, *, bound: int) -> None:
        """Enter the row, and check the account. Call this when every message has ended.

        Args:
            fault: What went wrong, in the table's first column.
            account: The account of the ledger.
            bound: How many duplicates there may be.
        """
        assert self._over is not None, "call is_over() when the fault has happened"
        recovery = time.monotonic() - self._over
        print(f"{fault}: {account}; recovered in {recovery:.1f} s; bound {bound}")
        row = Row(
            fault,
            account.sent,
            len(account.lost),
            account.duplicates,
            bound,
            recovery,
            self._node.name.partition("[")[0],
        )
        self._node.user_properties.append((_PROPERTY, attrs.astuple(row)))
        assert frozenset() == account.lost
        assert frozenset() == account.strange
        assert account.sent > 0
        assert account.duplicates <= bound, account.twice


@pytest.fixture
def fault(request: pytest.FixtureRequest) -> Fault:
    """Give a `Fault`, with which a test enters its row in the table."""
    return Fault(request.node)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes the table."""
    parser.addoption(
        "--write-reliability",
        action="store_true",
        help="put the rows of this run's fault tests into docs/reliability.md",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Start without rows, and register the plugin that keeps them."""
    config.stash[_ROWS] = []
    config.pluginmanager.register(_Keeper(config), "reliability-rows")


@attrs.frozen
class _Keeper:
    """Collects rows, also those of pytest-xdist's workers, and writes them at the end."""

    config: pytest.Config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the rows of a test that has passed."""
        if report.when == "call" and report.passed:
            rows = [Row(*value) for name, value in report.user_properties if name == _PROPERTY]
            self.config.stash[_ROWS].extend(rows)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the rows, and write them if the option asks for it."""
        if not (rows := merged(self.config.stash[_ROWS])):
            return
        terminalreporter.section("faults")
        for row in rows:
            terminalreporter.line(
                f"{row.fault}: lost {row.lost} of {row.messages}, duplicates {row.duplicates} "
                f"(bound: {row.bound}), recovered in {row.recovery:.1f} s"
            )
        if self.config.getoption("--write-reliability"):
            write(PAGE, rows)


def merged(rows: Iterable[Row]) -> list[Row]:
    """Merge the rows of the same fault and test into one row, with the worst of each."""
    worst: dict[tuple[str, str], Row] = {}
    for row in rows:
        before = worst.setdefault((row.fault, row.test), row)
        if before is not row:
            worst[row.fault, row.test] = attrs.evolve(
                before,
                messages=before.messages + row.messages,
                lost=before.lost + row.lost,
                duplicates=max(before.duplicates, row.duplicates),
                recovery=max(before.recovery, row.recovery),
            )
    return list(worst.values())


def rows_tests(text: str) -> list[str]:
    """Return the tests that the rows of the page *text* name, row by row."""
    return [re.findall(r"`(test_\w+)` \|$", line)[0] for line in _lines(text)]


def write(page: Path, rows: list[Row]) -> None:
    """Put *rows* into the page, in place of the earlier rows of their tests."""
    text = page.read_text(encoding="utf-8")
    ours = {row.test for row in rows}
    kept = [
        line for line, test in zip(_lines(text), rows_tests(text), strict=True) if test not in ours
    ]
    lines = sorted([*kept, *(row.line() for row in rows)])
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    table = "\n".join([*_head(), *lines])
    page.write_text(f"{head}{BEGIN}\n{table}\n{END}{tail}", encoding="utf-8")


def _head() -> Iterator[str]:
    yield "| " + " | ".join(_COLUMNS) + " |"
    yield "|" + " --- |" * len(_COLUMNS)


def _lines(text: str) -> list[str]:
    rows = text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    return rows[2:]

"""The options of the run at scale."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the number of rows."""
    parser.getgroup("scale").addoption("--rows", type=int, default=100_000, help="rows to stream")


@pytest.fixture
def rows(request: pytest.FixtureRequest) -> int:
    """Return how many rows a test streams."""
    rows: int = request.config.getoption("--rows")
    return rows

"""How many schedules are run, and from which seed on."""

from __future__ import annotations

import pytest

#: The schedules of one test.
CHUNK = 100


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--schedules", type=int, default=2000, help="how many schedules to run")
    parser.addoption("--first-seed", type=int, default=0, help="the seed of the first one")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Divide the schedules among tests."""
    if "seeds" in metafunc.fixturenames:
        first = metafunc.config.getoption("--first-seed")
        last = first + metafunc.config.getoption("--schedules")
        chunks = [range(at, min(at + CHUNK, last)) for at in range(first, last, CHUNK)]
        metafunc.parametrize("seeds", chunks, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")

"""The options of the soak test."""

from __future__ import annotations

import random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the duration and for the seed."""
    group = parser.getgroup("soak")
    group.addoption("--soak-minutes", type=float, default=5.0, help="how long faults are made")
    group.addoption("--soak-seed", type=int, help="the schedule to play (a new one by default)")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Return the seed, and print it."""
    seed: int | None = request.config.getoption("--soak-seed")
    if seed is None:
        seed = random.SystemRandom().randrange(1 << 31)
    print(f"\nto play this again: --soak-seed {seed}")
    return seed


@pytest.fixture
def minutes(request: pytest.FixtureRequest) -> float:
    """Return for how many minutes faults happen."""
    minutes: float = request.config.getoption("--soak-minutes")
    return minutes

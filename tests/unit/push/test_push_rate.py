"""A limit of messages a second, in virtual time."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.errors import ConfigError
from pulsar_retry.push.pacing import CATCH_UP, RateLimit

rates = st.floats(0.1, 10_000)
pauses = st.lists(st.floats(0, 2), min_size=1, max_size=200)


def begun(limit: RateLimit, pauses: list[float]) -> list[float]:
    """Let all begin that may, after each pause; return the times."""
    now, times = 1000.0, []
    for pause in pauses:
        now += pause
        for _ in range(limit.free(now)):
            assert limit.wait(now) < 1e-9
            limit.begun(now)
            times.append(now)
        # Both agree, also where the number of turns was rounded.
        assert (limit.wait(now) > 0) == (limit.free(now) == 0)
    return times


@given(rates, pauses)
def test_never_more_than_its_limit(per_second, pauses):
    """In no span of time, however long or short."""
    times = begun(RateLimit(per_second), pauses)
    for first in range(0, len(times), max(1, len(times) // 20)):
        for last in range(first, len(times)):
            span = times[last] - times[first] + CATCH_UP
            assert last - first + 1 <= 1 + span * per_second * (1 + 1e-9) + 1e-6


@given(rates)
def test_as_many_as_its_limit(per_second):
    """Those that come a little late for their turns lose nothing."""
    limit = RateLimit(per_second)
    for number in range(100):
        now = 1000.0 + number / per_second + CATCH_UP / 2
        assert limit.free(now) >= 1
        limit.begun(now)


def test_turns_are_spaced_evenly():
    """One after the other, however long nothing came before."""
    limit = RateLimit(10)
    now = itertools.count(100)
    for second in (next(now), next(now)):
        assert 1 == limit.free(second)
        limit.begun(second)
        assert pytest.approx(0.1 - CATCH_UP) == limit.wait(second)


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, "5", True, None])
def test_a_rate_of_nonsense(value):
    """A number above 0."""
    with pytest.raises(ConfigError, match="max_rate"):
        RateLimit(value)

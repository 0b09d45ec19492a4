"""The tables of tests/benchmarks/README.md."""

from __future__ import annotations

import pytest

from support.benchmarks.figures import (
    Figures,
    Result,
    Time,
)


@pytest.mark.parametrize(
    ("ratio", "cpu_ratio", "by_cpu", "low"),
    [
        (0.9, 0.9, False, True),
        (0.9, 1.0, False, False),
        (1.0, 0.9, False, False),
        (1.0, 0.9, True, True),
        (0.9, 0.97, True, False),
    ],
)
def test_a_ratio_is_low_if_rate_and_processor_time_say_so(ratio, cpu_ratio, by_cpu, low):
    """One of them alone may be noise, where not processor time alone is asked for."""
    result = Result("any", (1.0, 1.0, 1.0), ratio, 1.0, cpu_ratio, 0.97, by_cpu)

    assert low == bool(result.missed)
    assert Figures((result,)).missed() == [result.missed] * low


@pytest.mark.parametrize(("ratio", "long"), [(1.2, False), (1.4, True)])
def test_a_time_is_too_long_above_its_ceiling(ratio, long):
    """By time and by processor time."""
    time = Time("any", (1.0, 1.0, 1.0), ratio, 1.0, ratio, 1.3)

    assert long == bool(time.missed)

"""The adaptive limit, in virtual time, on a service whose capacity changes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pulsar_retry.pull.rules.limit import AdaptiveLimit
from support.pull.capacity import Phase, adaptive, p99, rate, run

#: Seconds of a phase, and those after which the limit must fit.
LASTS, ADAPTS = 60.0, 30.0

#: How long requests take, relative to the mean.
TIMES: dict[str, Callable[[random.Random], float]] = {
    "narrow": lambda chance: chance.lognormvariate(-0.02, 0.2),
    "wide": lambda chance: chance.lognormvariate(-0.32, 0.8),
}

#: The capacity grows to four times, and falls back: by more requests at a time, or quicker ones.
STEPS = {
    "width": [(8, 0.02), (32, 0.02), (8, 0.02)],
    "speed": [(8, 0.02), (8, 0.005), (8, 0.02)],
}


@pytest.mark.parametrize("sample", TIMES.values(), ids=TIMES)
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_it_follows_the_capacity(
    steps: list[tuple[int, float]], sample: Callable[[random.Random], float]
) -> None:
    """Within 10 % of the best fixed limit, and with a p99 of at most 1.5 times."""
    phases = [
        Phase(width, seconds, LASTS * number) for number, (width, seconds) in enumerate(steps, 1)
    ]
    handled = adaptive(phases, sample=sample)
    for number, (width, seconds) in enumerate(steps):
        best = run([Phase(width, seconds, LASTS)], lambda width=width: width, sample=sample)  # type: ignore[misc]
        for since in range(int(LASTS * number + ADAPTS), int(LASTS * (number + 1)), 10):
            assert rate(handled, since, since + 10) >= 0.9 * rate(best, 10, LASTS)
            assert p99(handled, since, since + 10) <= 1.5 * p99(best, 10, LASTS)


def test_a_fixed_limit_does_not() -> None:
    """The test of the test: what is right for four times the capacity queues otherwise."""
    narrow = TIMES["narrow"]
    best = run([Phase(8, 0.02, 10)], lambda: 8, sample=narrow)
    more = run([Phase(8, 0.02, 10)], lambda: 32, sample=narrow)
    fewer = run([Phase(32, 0.02, 10)], lambda: 8, sample=narrow)
    assert p99(more, 0, 10) > 2 * p99(best, 0, 10)
    assert rate(fewer, 0, 10) < 0.3 * rate(run([Phase(32, 0.02, 10)], lambda: 32), 0, 10)


def results(limit: AdaptiveLimit, count: int, now: float, latency: float, failed: int = 0) -> float:
    """Record results of as many messages as may run; return the time after them."""
    for number in range(count):
        now += latency / limit.limit
        is_failed = number % 100 < failed
        limit.record(now - latency, now, failed=is_failed, running=limit.limit)
    return now


def test_an_outage_lowers_it_and_its_end_restores_it() -> None:
    """To one message at a time; and then it doubles, up to half of what it was."""
    limit = AdaptiveLimit(100, initial=64)
    now = results(limit, 1000, 0.0, 0.01)
    before = limit.limit
    now = results(limit, 2000, now, 0.01, failed=100)
    assert 1 == limit.limit
    results(limit, 1500, now, 0.01)
    assert limit.limit >= before / 2


def test_poison_messages_do_not_lower_it() -> None:
    """They fail at once, and say nothing about capacity."""
    limit = AdaptiveLimit(100)
    results(limit, 5000, 0.0, 0.01, failed=20)
    assert limit.limit > 20


def test_it_is_not_raised_unless_it_is_used() -> None:
    """With few messages, nothing shows what more would do."""
    limit, now = AdaptiveLimit(100), 0.0
    for _ in range(2000):
        now += 0.01
        limit.record(now - 0.01, now, failed=False, running=2)
    assert 10 == limit.limit


def test_it_stays_within_its_bounds() -> None:
    """From 1 to the maximum."""
    limit = AdaptiveLimit(12)
    now = results(limit, 5000, 0.0, 0.01)
    assert limit.limit <= 12
    results(limit, 5000, now, 1.0, failed=100)
    assert 1 == limit.limit


def test_handlers_that_take_no_time() -> None:
    """By a coarse clock, or in virtual time, also while the base is measured."""
    limit, now, slow = AdaptiveLimit(20), 0.0, 2350
    for number in range(slow + 500):
        now += 0.01
        began = now - (0.1 if number < slow else 0.0)
        limit.record(began, now, failed=False, running=limit.limit)
    assert 1 <= limit.limit <= 20

"""How often a wrong token may be presented, in virtual time."""

from __future__ import annotations

import pytest

from pulsar_retry.console import throttle
from pulsar_retry.console.throttle import BURST, INTERVAL, Throttle, TooManyTriesError


class Clock:
    """A clock that tests set."""

    now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def count(limit: Throttle, address: str, most: int = 100) -> int:
    """Return how many attempts of *address* are let through, of *most*."""
    for number in range(most):
        try:
            limit.take(address)
        except TooManyTriesError:
            return number
    return most


def test_ten_at_once_then_one_each_six_seconds() -> None:
    """Whatever was refused in between does not count."""
    clock = Clock()
    limit = Throttle(clock)
    assert BURST == count(limit, "10.0.0.1")
    with pytest.raises(TooManyTriesError) as refused:
        limit.take("10.0.0.1")
    assert pytest.approx(INTERVAL) == refused.value.wait
    clock.now += INTERVAL
    assert 1 == count(limit, "10.0.0.1")
    clock.now += 3600
    assert BURST == count(limit, "10.0.0.1")


def test_a_right_token_counts_as_nothing() -> None:
    """However often it is presented."""
    limit = Throttle(Clock())
    for _ in range(100):
        limit.take("10.0.0.1")
        limit.give_back("10.0.0.1")
    assert BURST == count(limit, "10.0.0.1")


def test_each_address_has_a_limit_of_its_own() -> None:
    """But for those that one machine has by the thousand."""
    limit = Throttle(Clock())
    assert (BURST, BURST) == (count(limit, "10.0.0.1"), count(limit, "10.0.0.2"))
    assert (BURST, 0) == (count(limit, "2001:db8::1"), count(limit, "2001:db8::ffff"))
    assert (BURST, BURST) == (count(limit, "2001:db8:0:1::1"), count(limit, ""))


def test_only_so_many_addresses_are_remembered(monkeypatch) -> None:
    """Those with the most recent attempts."""
    monkeypatch.setattr(throttle, "_MOST", 3)
    clock = Clock()
    limit = Throttle(clock)
    for number in range(10):
        clock.now += 1
        assert BURST == count(limit, f"10.0.0.{number}")
    assert 3 == len(limit._busy_until)
    assert 0 == count(limit, "10.0.0.9")

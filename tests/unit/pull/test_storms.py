"""A blip of ten seconds, in virtual time: the real subscriber calls a service with a queue."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.pull.storms import Load, Rig

RIG = Rig(rate=100, width=3, concurrency=300)

#: Each part has a limit of its own; both together are tested, too.
WAYS: dict[str, dict[str, Any]] = {
    "nack": {"redelivery": "nack"},
    "lanes": {"consumer_type": pulsar.ConsumerType.KeyShared},
    "adaptive": {"concurrency": "auto", "retry_budget": None},
    "both": {"concurrency": "auto"},
}


def share_of_retries(load: Load) -> float:
    """Return which part of all attempts were retries."""
    return sum(load.retries.values()) / sum(load.attempts.values())


def test_without_a_budget_it_stays_collapsed() -> None:
    """Otherwise the other tests would show nothing: retries alone keep the service overloaded."""
    load = RIG.run(retry_budget=None)
    assert RIG.rate == load.rate(load.good, 0, RIG.before)
    assert not load.rate(load.good, RIG.before, RIG.end)
    assert share_of_retries(load) > 0.5
    assert load.dead > 100


def assert_recovered(load: Load) -> None:
    """In 30 s, with few retries and without a dead letter; and in the end without a backlog."""
    recovered = RIG.before + RIG.blip + 30
    for second in range(int(recovered), int(RIG.end), 5):
        assert load.rate(load.good, second, second + 5) >= 0.95 * RIG.rate
    assert share_of_retries(load) <= 0.1
    assert (0, 0) == (load.dead, load.left)


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_it_recovers(options: dict[str, Any]) -> None:
    """With each way to retry, and each of the two limits."""
    assert_recovered(RIG.run(**options))


def test_it_recovers_and_tells(caplog: pytest.LogCaptureFixture) -> None:
    """By a WARNING at the begin and at the end, by its health, and by metrics."""
    load = RIG.run()
    assert_recovered(load)
    lines = [each for each in caplog.messages if "retry budget" in each]
    assert [True, False] == ["used up" in each for each in lines]
    during = load.told[int(RIG.before + RIG.blip)]
    assert "degraded" == during.health.state
    assert "the retry budget is used up" in during.health.reason
    assert (1, 0) == (during.gauges["holding"], during.gauges["retry_budget"])
    after = load.told[int(RIG.end) - 1]
    assert "running" == after.health.state
    assert (0, pr.RetryBudget().burst) == (
        after.gauges["holding"],
        after.gauges["retry_budget"],
    )

"""What `push serve` says of its health."""

from __future__ import annotations

import json
from unittest.mock import Mock

import pytest

from pulsar_retry.pull.health import Health
from pulsar_retry.push.pacing.pacer import Pace
from pulsar_retry.push.serving import Pages


def dispatcher(health: Health, *, paused: bool = False) -> Mock:
    """Return a dispatcher that is so."""
    pace = Pace(window=10, outstanding=0, delay=0.0, latency=0.01, paused=paused, stopping=False)
    return Mock(health=health, pace=pace, endpoint="https://example.com")


@pytest.mark.parametrize(
    ("health", "live", "ready"),
    [
        (Health("new"), 503, 503),
        (Health("starting", "the broker is away"), 200, 503),
        (Health("running"), 200, 200),
        (Health("degraded", "the connection to the broker is lost"), 200, 503),
        (Health("stopping"), 200, 503),
        (Health("stopped"), 503, 503),
        (Health("failed", "WorkersLostError: 33 handlers hang"), 503, 503),
    ],
    ids=lambda value: getattr(value, "state", None),
)
def test_health_is_that_of_the_dispatcher(health: Health, live: int, ready: int) -> None:
    """It lives until it has ended; it is ready while all is well. Both say what is wrong."""
    pages = Pages(dispatcher(health))
    for path, expected in (("/livez", live), ("/healthz", live), ("/readyz", ready)):
        status, _, body = pages.get(path)
        told = json.loads(body)
        assert (expected, health.state, health.reason) == (status, told["state"], told["reason"])
        assert (live == 200) is told["running"]


def test_a_paused_dispatcher_lives_but_is_not_ready() -> None:
    """Though nothing is wrong with it."""
    pages = Pages(dispatcher(Health("running"), paused=True))
    assert (200, 503) == (pages.get("/healthz")[0], pages.get("/readyz")[0])

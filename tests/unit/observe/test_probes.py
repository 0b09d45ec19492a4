"""What a worker answers to the probes of Kubernetes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import attrs
import pytest

import pulsar_retry as pr
from pulsar_retry.pull.report import Health


@attrs.define
class Subscription:
    """Something with a health."""

    health: Health


def ask(server: Any, path: str) -> tuple[int, Any]:
    """Return the status and the body of a page."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{server.port}{path}", timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.parametrize(
    ("health", "live", "ready"),
    [
        (Health("new"), 200, 503),
        (Health("starting", "the broker is away"), 200, 503),
        (Health("running"), 200, 200),
        (Health("degraded", "the connection to the broker is lost"), 200, 503),
        (Health("stopping"), 200, 503),
        (Health("stopped"), 200, 503),
        (Health("failed", "WorkersLostError: 33 handlers hang"), 503, 503),
    ],
    ids=lambda value: getattr(value, "state", None),
)
def test_health_is_that_of_the_subscription(health: Health, live: int, ready: int) -> None:
    """A restart helps only what has failed; a worker that drains must not be killed."""
    with pr.start_metrics_server(0, health=Subscription(health)) as server:
        for path, expected in (("/livez", live), ("/readyz", ready)):
            status, told = ask(server, path)
            assert expected == status
            assert [{"state": health.state, "reason": health.reason}] == told["subscriptions"]
            assert (live == 200, ready == 200) == (told["live"], told["ready"])


def test_the_worst_of_several_counts() -> None:
    """Also of one that is added later."""
    watched = [Subscription(Health("running"))]
    with pr.start_metrics_server(0, health=watched) as server:
        assert 200 == ask(server, "/readyz")[0]
        watched.append(Subscription(Health("failed", "boom")))
        assert (503, 503) == (ask(server, "/livez")[0], ask(server, "/readyz")[0])


def test_nothing_yet_is_not_ready() -> None:
    """But it lives: its subscriptions come."""
    with pr.start_metrics_server(0, health=[]) as server:
        assert (200, 503) == (ask(server, "/livez")[0], ask(server, "/readyz")[0])


def test_without_health_there_are_no_probes() -> None:
    """A probe that nobody has set up must not look as if all were well."""
    with pr.start_metrics_server(0) as server:
        assert (404, 404) == (ask(server, "/livez")[0], ask(server, "/readyz")[0])


@pytest.mark.parametrize("health", ["running", 5, [5], Health("running")])
def test_only_what_has_a_health_can_be_watched(health: Any) -> None:
    """Before anything is opened."""
    with pytest.raises(pr.ConfigError, match="a subscriber, a dispatcher"):
        pr.start_metrics_server(0, health=health)

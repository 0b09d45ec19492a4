"""What Prometheus gets to see."""

from __future__ import annotations

import urllib.request
import uuid

import prometheus_client
import pytest

import pulsar_retry as pr
from pulsar_retry.observe.counting import COUNTERS


class Source:
    """Something with gauges."""

    def __init__(self, **values: float) -> None:
        self.values = values

    def gauges(self) -> dict[str, float]:
        """Return them."""
        return self.values


@pytest.fixture
def names() -> dict[str, str]:
    """Give the labels of a subscription that no other test has."""
    return {"topic": f"persistent://public/default/{uuid.uuid4().hex}", "subscription": "billing"}


def test_a_scrape_reads_what_was_counted(names: dict[str, str]) -> None:
    """Counters and gauges, each with its labels."""
    counters, registry = COUNTERS.of(**names), prometheus_client.CollectorRegistry()
    counters.acknowledged += 3
    counters.count("dead_letters", "invalid")
    sources = Source(inflight=2, load_ratio=0.5), Source(inflight=3, load_ratio=0.25)
    for source in sources:
        counters.attach(source)
    sample = pr.register_metrics(registry).get_sample_value
    assert 3 == sample("pulsar_retry_deliveries_total", {**names, "outcome": "acknowledged"})
    assert 1 == sample("pulsar_retry_dead_letters_total", {**names, "reason": "invalid"})
    assert 5 == sample("pulsar_retry_inflight", names)
    assert 0.5 == sample("pulsar_retry_load_ratio", names)


def test_counters_begin_at_nothing(names: dict[str, str]) -> None:
    """What is 1 at the first scrape would show no increase, and no alert would see it."""
    COUNTERS.of(**names)
    sample = pr.register_metrics(prometheus_client.CollectorRegistry()).get_sample_value
    assert 0 == sample("pulsar_retry_deliveries_total", {**names, "outcome": "dead_lettered"})
    assert 0 == sample("pulsar_retry_retries_total", {**names, "kind": "letter"})


def test_a_registry_is_registered_with_once() -> None:
    """A second call does no harm, and Prometheus' own default does as well."""
    registry = prometheus_client.CollectorRegistry()
    assert pr.register_metrics(registry) is registry
    pr.register_metrics(registry)
    text = prometheus_client.generate_latest(registry).decode()
    assert 1 == text.count("# TYPE pulsar_retry_deliveries_total counter")


def test_a_server_of_a_registry_of_ones_own() -> None:
    """It shows what else is there."""
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.Counter("mine", "One of mine.", registry=registry).inc()
    with pr.start_metrics_server(0, registry=registry) as server:
        url = f"http://127.0.0.1:{server.port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read().decode()
    assert "mine_total 1.0" in text
    assert "pulsar_retry_deliveries_total" in text


@pytest.mark.parametrize("port", [-1, 65_536, "80", True, None])
def test_a_port_is_a_port(port: object) -> None:
    """Before anything is opened."""
    with pytest.raises(pr.ConfigError, match=r"port=.*0 to 65535"):
        pr.start_metrics_server(port)  # type: ignore[arg-type]


@pytest.mark.parametrize("addr", [None, "", 5])
def test_an_address_is_an_address(addr: object) -> None:
    """None is not all of them: only who says so opens the port to others."""
    with pytest.raises(pr.ConfigError, match=r"addr=.*an address"):
        pr.start_metrics_server(0, addr)  # type: ignore[arg-type]


def test_a_registry_is_a_registry() -> None:
    """Before anything is opened."""
    with pytest.raises(pr.ConfigError, match=r"registry=.*CollectorRegistry"):
        pr.start_metrics_server(0, registry=print)  # type: ignore[arg-type]


def test_a_port_that_is_taken() -> None:
    """One line, and an error of ours."""
    with (
        pr.start_metrics_server(0) as server,
        pytest.raises(pr.PulsarRetryError, match=f"cannot listen on 127.0.0.1, port {server.port}"),
    ):
        pr.start_metrics_server(server.port)

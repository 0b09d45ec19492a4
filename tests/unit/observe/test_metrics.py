"""What Prometheus gets to see."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
import uuid
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families

import pulsar_retry as pr
from pulsar_retry.observe.counting import BOOK, LATENCY_BOUNDS, Book
from pulsar_retry.observe.metrics import METRICS, CountersCollector
from support.reading import eventually


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
    return {"topic": f"orders-{uuid.uuid4().hex}", "subscription": "billing"}


def test_a_scrape_reads_what_was_counted(names: dict[str, str]) -> None:
    """Counters, gauges and histograms, each with its labels."""
    counters, registry = BOOK.counters(**names), prometheus_client.CollectorRegistry()
    counters.messages.count += 3
    counters.count("dead_letters", "invalid")
    counters.all_done([(2, 0.7)])
    sources = Source(inflight=2, load_ratio=0.5), Source(inflight=3, load_ratio=0.25)
    for source in sources:
        counters.attach(source)
    sample = pr.register_metrics(registry).get_sample_value
    assert 3 == sample("pulsar_retry_deliveries_total", {**names, "outcome": "acknowledged"})
    assert 1 == sample("pulsar_retry_dead_letters_total", {**names, "reason": "invalid"})
    assert 0 == sample("pulsar_retry_attempts_bucket", {**names, "le": "1.0"})
    assert 1 == sample("pulsar_retry_attempts_bucket", {**names, "le": "2.0"})
    assert 1 == sample("pulsar_retry_attempts_bucket", {**names, "le": "+Inf"})
    assert 0.7 == sample("pulsar_retry_critical_seconds_sum", names)
    assert 5 == sample("pulsar_retry_inflight", names)
    assert 0.5 == sample("pulsar_retry_load_ratio", names)


def test_counters_begin_at_nothing(names: dict[str, str]) -> None:
    """What is 1 at the first scrape would show no increase, and no alert would see it."""
    BOOK.counters(**names)
    sample = pr.register_metrics(prometheus_client.CollectorRegistry()).get_sample_value
    assert 0 == sample("pulsar_retry_deliveries_total", {**names, "outcome": "dead_lettered"})
    assert 0 == sample("pulsar_retry_retries_total", {**names, "kind": "letter"})


def test_every_metric_can_be_read(names: dict[str, str]) -> None:
    """Prometheus' own parser takes them all, under the names that are documented."""
    book = Book()
    counters = book.counters("orders", "billing")
    for spec in METRICS:
        counters.count(spec.name, "x") if spec.kind == "counter" else None
        counters.observe(spec.name, LATENCY_BOUNDS, 1.0) if spec.kind == "histogram" else None
    gauges = Source(**{spec.name: 1.0 for spec in METRICS if spec.kind == "gauge"})
    counters.attach(gauges)
    registry = prometheus_client.CollectorRegistry()
    registry.register(CountersCollector(book))
    text = prometheus_client.generate_latest(registry).decode()
    families = {f.name: f for f in text_string_to_metric_families(text)}
    assert {f"pulsar_retry_{spec.name}" for spec in METRICS} == set(families)
    assert all(family.samples and family.documentation for family in families.values())


def test_a_registry_is_registered_with_once() -> None:
    """A second call does no harm, and Prometheus' own default does as well."""
    registry = prometheus_client.CollectorRegistry()
    assert pr.register_metrics(registry) is registry
    pr.register_metrics(registry)
    text = prometheus_client.generate_latest(registry).decode()
    assert 1 == text.count("# TYPE pulsar_retry_deliveries_total counter")


def test_a_server(names: dict[str, str]) -> None:
    """Any HTTP client sees the metrics, on a port that was free."""
    BOOK.counters(**names).count("retries", "nack")
    with pr.start_metrics_server(0) as server:
        url = f"http://127.0.0.1:{server.port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read().decode()
    labels = f'kind="nack",subscription="billing",topic="{names["topic"]}"'
    assert f"pulsar_retry_retries_total{{{labels}}} 1.0" in text
    server.close()


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


WORKER = """
import os, sys, time
from pulsar_retry.observe.watch import Watch
from pulsar_retry.observe import multiprocess
multiprocess.INTERVAL = 0.01
class Source:
    def gauges(self):
        return {"inflight": 2.0, "load_ratio": float(sys.argv[1]) / 10}
watch, source = Watch.of("orders", "billing"), Source()
watch.counters.attach(source)
watch.counters.messages.count += int(sys.argv[1])
for _ in range(int(sys.argv[1])):
    watch.counters.all_done([(2, 0.7)])
time.sleep(0.1)
watch.counters.all_done([(3, 0.7)])
if os.fork() == 0:
    watch = Watch.of("orders", "billing")
    watch.counters.messages.count += 100
    sys.exit()
os.wait()
print("counted", flush=True)
sys.stdin.read()
"""


def test_several_processes(tmp_path: Path) -> None:
    """Each process, a forked one too, counts into its files; any one of them shows the sum."""
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(number)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in (3, 4)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert "counted\n" == worker.stdout.readline()
        registry = prometheus_client.CollectorRegistry()
        MultiProcessCollector(registry, path=str(tmp_path))  # type: ignore[no-untyped-call]
        labels = {"topic": "persistent://public/default/orders", "subscription": "billing"}
        sample = registry.get_sample_value
        # The files have the gauges a little later.
        eventually(lambda: 4 == sample("pulsar_retry_inflight", labels))
        eventually(lambda: 0.4 == sample("pulsar_retry_load_ratio", labels))
        for worker in workers:
            worker.communicate(timeout=240)
            assert 0 == worker.returncode
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    counted = {**labels, "outcome": "acknowledged"}
    assert 207 == sample("pulsar_retry_deliveries_total", counted)
    assert 7 == sample("pulsar_retry_attempts_bucket", {**labels, "le": "2.0"})
    assert 9 == sample("pulsar_retry_attempts_count", labels)
    assert 9 == sample("pulsar_retry_attempts_bucket", {**labels, "le": "+Inf"})
    assert pytest.approx(9 * 0.7) == sample("pulsar_retry_critical_seconds_sum", labels)


def test_a_fork_waits_for_a_copy(tmp_path: Path) -> None:
    """Otherwise a child may inherit a lock of prometheus_client as held, and hang at its end."""
    program = """
import os, threading
from pulsar_retry.observe import multiprocess
from pulsar_retry.observe.watch import Watch
multiprocess.INTERVAL = 0.01
copies, goes_on = threading.Event(), threading.Event()
class Source:
    def gauges(self):
        copies.set()
        goes_on.wait()
        return {"inflight": 2.0}
watch, source = Watch.of("orders", "billing"), Source()
watch.counters.attach(source)
copies.wait()
threading.Timer(0.3, goes_on.set).start()
if os.fork() == 0:
    os._exit(0)
print("waited" if goes_on.is_set() else "did not wait")
goes_on.wait()
os.wait()
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=240,
    )
    assert "waited\n" == done.stdout


def test_a_server_of_several_processes(tmp_path: Path) -> None:
    """`start_metrics_server` serves them all; without the directory it says what is missing."""
    program = """
import os, urllib.request
import pulsar_retry as pr
from pulsar_retry.observe.watch import Watch
from pulsar_retry.observe import multiprocess
Watch.of("orders", "billing").counters.messages.count += 5
multiprocess._mirror.copy()
with pr.start_metrics_server(0) as server:
    text = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics").read().decode()
assert 'outcome="acknowledged"' in text and " 5.0" in text, text
os.environ["PROMETHEUS_MULTIPROC_DIR"] = "/nowhere"
try:
    pr.start_metrics_server(0)
except pr.ConfigError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert "PROMETHEUS_MULTIPROC_DIR='/nowhere': expected a directory that exists\n" == done.stdout


def test_a_subscription_that_is_opened_again(tmp_path: Path) -> None:
    """Its counts begin at 0 in the process, but the sum over the processes never goes back."""
    program = """
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
from pulsar_retry.observe.counting import KEPT, Book
from pulsar_retry.observe.metrics import CountersCollector
from pulsar_retry.observe.multiprocess import Mirror

now = 0.0
book = Book(lambda: now)
mirror = Mirror(CountersCollector(book))
registry = CollectorRegistry()
MultiProcessCollector(registry)
labels = {"topic": "orders", "subscription": "billing"}
counted = {**labels, "outcome": "acknowledged"}

def total():
    mirror.copy()
    return (registry.get_sample_value("pulsar_retry_deliveries_total", counted),
            registry.get_sample_value("pulsar_retry_attempts_count", labels))

def handle():
    counters = book.counters("orders", "billing")
    for _ in range(5):
        counters.messages.count += 1
        counters.all_done([(1, 0.1)])

handle()
assert (5, 5) == total(), total()
for _ in range(2):
    now += KEPT + 1
    assert (5, 5) == total(), total()
handle()
assert (10, 10) == total(), total()
"""
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=240)

"""Dashboards, alerts and the documentation speak of metrics that are really exported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from pulsar_retry.observe.counting import AllCounters
from pulsar_retry.observe.metrics import (
    LETTER_METRICS,
    METRICS,
    CountersCollector,
)
from pulsar_retry.ops.exporter import LetterCollector
from pulsar_retry.ops.overview import LetterTopic

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "docker" / "monitoring"
DASHBOARD = MONITORING / "grafana" / "dashboards" / "pulsar-retry.json"
PAGE = ROOT / "docs" / "observability.md"
ALL_METRICS = [*METRICS, *LETTER_METRICS]


class Source:
    """Every gauge."""

    def gauges(self) -> dict[str, float]:
        """Return it."""
        return {spec.name: 1.0 for spec in METRICS if spec.kind == "gauge"}


def letter_topic(kind: Any) -> LetterTopic:
    """Return a topic with letters."""
    return LetterTopic(
        topic=f"orders-billing-{kind}",
        kind=kind,
        main_topic="orders",
        subscription="billing",
        backlog=2,
        oldest_age_seconds=60.0,
        rate_in=0.0,
        rate_out=0.0,
        partitions=0,
        subscriptions=("billing",),
        consumers=0,
    )


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Give the name and labels of every sample of a scrape."""
    all_counters, source = AllCounters(), Source()
    counters = all_counters.of("orders", "billing")
    counters.attach(source)
    for spec in METRICS:
        if spec.kind == "counter":
            counters.count(spec.name, "x")
    letters = LetterCollector()
    letters.show("public/default", [letter_topic("retry"), letter_topic("dead_letter")])
    registry = prometheus_client.CollectorRegistry()
    registry.register(CountersCollector(all_counters))
    registry.register(letters)
    text = prometheus_client.generate_latest(registry).decode()
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def queries() -> Iterator[tuple[str, str]]:
    """Yield what the dashboard and the alerts ask for, and who asks."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield f"{panel['title']} {target['refId']}", target["expr"]
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


QUERIES = [pytest.param(expr, id=name) for name, expr in queries()]


def asked(query: str) -> list[tuple[str, set[str]]]:
    """Return the metrics that a query reads, each with the labels that it asks for."""
    selected: list[tuple[str, set[str]]] = []
    grouped: set[str] = set()

    def visit(node: promql.Expr) -> bool:
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            grouped.update(node.modifier.labels)
        elif isinstance(node, promql.VectorSelector):
            selected.append((node.name, {each.name for each in node.matchers.matchers}))
        return True

    promql.walk(promql.parse(query.replace("$__rate_interval", "5m")), visit)
    by_prometheus = {"instance", "job"}
    return [(name, (labels | grouped) - by_prometheus) for name, labels in selected]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_what_is_there(query: str, exported: dict[str, set[str]]) -> None:
    """It is PromQL, and each metric is exported with the labels that are asked for."""
    metrics = asked(query)
    assert metrics
    for name, labels in metrics:
        assert name in exported
        assert labels <= exported[name]


def test_the_variables_of_the_dashboard(exported: dict[str, set[str]]) -> None:
    """What there is to choose from comes from metrics that are exported."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    variables = {each["name"]: each["query"]["query"] for each in dashboard["templating"]["list"]}
    assert {"topic", "subscription"} == set(variables)
    for query in variables.values():
        names = set(re.findall(r"pulsar_retry_\w+", query))
        assert names
        assert names <= set(exported)


def rows(page: str) -> dict[str, list[str]]:
    """Return the cells of each metric's row in the documentation."""
    found = re.findall(r"^\| `(pulsar_retry_\w+)` \|(.*)\|$", page, re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in found}


def test_the_documentation_names_what_is_exported(exported: dict[str, set[str]]) -> None:
    """Every metric, and no other."""
    documented = rows(PAGE.read_text(encoding="utf-8"))
    bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported}
    assert bases == set(documented)


@pytest.mark.parametrize("spec", ALL_METRICS, ids=lambda spec: spec.name)
def test_the_documentation_says_type_and_labels(spec: Any) -> None:
    """As they are exported."""
    name = f"pulsar_retry_{spec.name}" + ("_total" if spec.kind == "counter" else "")
    kind, labels, _ = rows(PAGE.read_text(encoding="utf-8"))[name]
    assert spec.kind == kind
    if spec in METRICS:
        assert (f"`{spec.label}`" if spec.label else "") == labels
    elif labels != "the same":
        assert set(spec.labels) == set(re.findall(r"`(\w+)`", labels))


def test_what_the_broker_does_not_answer_for_is_not_shown() -> None:
    """An old number would look like a healthy one."""
    collector = LetterCollector()
    registry = prometheus_client.CollectorRegistry()
    registry.register(collector)
    sample = registry.get_sample_value
    labels = {
        "topic": "orders",
        "subscription": "billing",
        "letter_topic": "orders-billing-dead_letter",
    }
    namespace = {"namespace": "public/default"}
    assert sample("pulsar_retry_exporter_up", namespace) is None
    collector.show("public/default", [letter_topic("dead_letter")])
    assert 1 == sample("pulsar_retry_exporter_up", namespace)
    assert 2 == sample("pulsar_retry_dlq_backlog", labels)
    age = sample("pulsar_retry_dlq_oldest_age_seconds", labels)
    assert age is not None
    assert 60 <= age < 160
    collector.show("public/default", None)
    assert 0 == sample("pulsar_retry_exporter_up", namespace)
    assert sample("pulsar_retry_dlq_backlog", labels) is None

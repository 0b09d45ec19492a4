"""What `pulsar-retry doctor --pulsar5` concludes from what it has read."""

from __future__ import annotations

import attrs
import pytest

from pulsar_retry.ops import migration, settings
from pulsar_retry.replay import Cluster, Subscription

ON = {"scalableTopicsEnabled": "true"}
V5 = {"metadata": {"__pulsar.v5.managed": "true"}, "address": "/10.0.0.9:1", "clientVersion": "5"}
TARGET = Subscription(Cluster("pulsar://localhost:6650"), "orders", "billing")


def v4(number, **facts):
    """Return what a broker tells of a connection of pulsar-client."""
    known = {"address": f"/10.0.0.{number}:4711", "clientVersion": "Pulsar-CPP-v4.1.0"}
    return known | {"metadata": {}} | facts


def topic(*publishers, kind="Shared", consumers=(), **facts):
    """Return the statistics of a topic with one subscription."""
    found = {"type": kind, "consumers": list(consumers), "isReplicated": False} | facts
    return {"publishers": list(publishers), "subscriptions": {"billing": found}}


@pytest.mark.parametrize(
    ("findings", "verdicts"),
    [
        (migration.of_release("4.2.4", ON), ["error"]),
        (migration.of_release("unknown", None), ["error"]),
        (migration.of_release("5.0.1", ON), ["ok"]),
        (migration.of_release("5.0.1", None), []),
        (migration.of_release("5.0.1", {"scalableTopicsEnabled": "false"}), ["error"]),
        (migration.of_release("5.0.1", ON | {"enableScalableTopicMigration": "false"}), ["error"]),
        (migration.of_connections({"a": topic(V5, consumers=[V5])}), ["ok"]),
        (migration.of_connections({"a": topic(v4(1)), "b": topic(v4(1))}), ["error"]),
        (migration.of_connections({"a": topic(v4(1), consumers=[v4(1), v4(2)])}), ["error"] * 3),
        (migration.of_connections({"a": topic() | {"replication": {"west": {}}}}), ["error"]),
        (migration.of_subscription("billing", {"a": topic(), "b": topic()}), ["warning"]),
        (migration.of_subscription("billing", {"a": topic(kind="Key_Shared")}), ["warning"]),
        (migration.of_subscription("billing", {"a": topic(kind=None)}), ["unknown"]),
        (
            migration.of_subscription("billing", {"a": topic(isReplicated=True)}),
            ["error", "warning"],
        ),
        (migration.of_subscription("shipping", {"a": topic()}), ["error"]),
        (migration.of_replication("orders", None), ["ok"]),
        (migration.of_replication("orders", ["east"]), ["ok"]),
        (migration.of_replication("orders", ["east", "west"]), ["error"]),
        (migration.of_letters(TARGET, None, None), ["ok", "warning", "warning"]),
        (migration.of_letters(TARGET, 0, 0), ["warning", "warning", "warning"]),
        (migration.of_letters(TARGET, 3, 5), ["error", "error", "warning", "warning"]),
    ],
)
def test_what_stops_a_migration_is_an_error(findings, verdicts):
    """What is different afterwards is a warning."""
    assert verdicts == [each.verdict for each in findings]


def test_each_client_is_named_once_with_its_connection():
    """Also if it uses several partitions."""
    stats = {
        f"orders-partition-{each}": topic(
            v4(1, producerName=f"shop-{each}"), consumers=[v4(2, consumerName="worker")]
        )
        for each in range(2)
    }
    found = [each.text.split(")")[0] for each in migration.of_connections(stats)]
    assert [
        "consumer of billing worker (/10.0.0.2:4711, Pulsar-CPP-v4.1.0",
        "producer shop-0, shop-1 (/10.0.0.1:4711, Pulsar-CPP-v4.1.0",
    ] == found


def test_the_dead_letters_of_v5_clients_are_named():
    """They go to one scalable topic for all subscriptions, unless the policy names another."""
    text = " ".join(each.text for each in migration.of_letters(TARGET, None, None))
    assert "topic://public/default/orders-DLQ" in text
    assert "name persistent://public/default/orders-billing-DLQ in its policy" in text


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        (settings.of_stored_acks(None, 5), ["unknown"]),
        (settings.of_stored_acks({}, 5), []),
        (
            settings.of_stored_acks({"managedLedgerMaxUnackedRangesToPersist": "10000"}, 10_000),
            ["ok"],
        ),
        (
            settings.of_stored_acks({"managedLedgerMaxUnackedRangesToPersist": "10000"}, 10_001),
            ["warning"],
        ),
        (
            settings.of_stored_acks({"managedLedgerMaxUnackedRangesToPersist": "200000"}, 10_001),
            ["ok"],
        ),
        (settings.of_read_batch(None), []),
        (settings.of_read_batch({"dispatcherMaxReadBatchSize": "500"}), ["ok"]),
    ],
)
def test_defaults_that_pulsar_5_changes(findings, expected):
    """More letters than stored acknowledgements come again after a restart."""
    assert expected == [each.verdict for each in findings]


def test_a_result_is_a_value():
    """So `--json` shows it."""
    (found,) = settings.of_read_batch({"dispatcherMaxReadBatchSize": "500"})
    assert "500 entries" in attrs.asdict(found)["text"]

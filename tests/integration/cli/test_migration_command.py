"""`pulsar-retry doctor --pulsar5`, on a real broker."""

from __future__ import annotations

import json

import pulsar

from support.reading import SUBSCRIPTION


def findings_of(run, topic: str) -> list[dict[str, str]]:
    """Return what the command prints; a broker before 5.0 always has an error."""
    code, output, _ = run("doctor", topic, SUBSCRIPTION, "--pulsar5", "--json")
    assert 1 == code
    return json.loads(output)


def test_everything_that_stops_a_migration_is_listed(dead, run, client) -> None:
    """Each client, each letter, and what to do; the exit code is 1."""
    consumer = dead.subscribe()
    dead.fill(2)
    producer = client.create_producer(dead.topic, producer_name="shop")
    producer.send(b"order")
    consumer.reconsume_later(consumer.receive(60_000), delay=3600)

    findings = findings_of(run, dead.topic)

    def told(check: str, verdict: str) -> str:
        return " ".join(
            each["text"]
            for each in findings
            if (each["check"], each["verdict"]) == (check, verdict)
        )

    assert "5.0 or later, whose servers need Java 21" in told("scalable topics", "error")
    assert "producer shop (" in told("v4 clients", "error")
    assert f"consumer of {SUBSCRIPTION} " in told("v4 clients", "error")
    assert "Pulsar-CPP-v" in told("v4 clients", "error")
    assert told("retry letters", "error").startswith(f"1 on {dead.retry}, which no V5 consumer")
    assert told("dead letters", "error").startswith(f"2 on {dead.dlq}: redrive them before")
    assert "becomes a queue consumer" in told("subscription", "warning")
    assert "cannot be undone" in told("migration", "warning")
    assert told("geo-replication", "ok") == "none"
    code, output, _ = run("doctor", dead.topic, SUBSCRIPTION, "--pulsar5")
    assert (1, True) == (code, "HTTP 409" in output)


def test_nothing_is_connected(dead, run, client, admin) -> None:
    """A partitioned topic without clients: only the release stops it."""
    admin.create_partitioned_topic(dead.topic, 2)
    client.subscribe(dead.topic, SUBSCRIPTION, pulsar.ConsumerType.Failover).close()
    findings = findings_of(run, dead.topic)
    assert ["scalable topics"] == [e["check"] for e in findings if e["verdict"] == "error"]
    assert "none is connected" in {each["text"] for each in findings}


def test_a_topic_that_cannot_be_migrated(dead, run) -> None:
    """A topic that is not there, that is not persistent, a REST API that is not there."""
    for topic, text in (
        (dead.topic, "does not exist"),
        (dead.topic.replace("persistent", "non-persistent"), "only persistent topics"),
    ):
        findings = findings_of(run, topic)
        assert text in findings[-1]["text"]
        assert "error" == findings[-1]["verdict"]
    arguments = ("doctor", "t", "s", "--pulsar5", "--admin-url", "http://127.0.0.1:1")
    code, output, _ = run(*arguments)
    assert (1, True) == (code, "was not reached" in output)

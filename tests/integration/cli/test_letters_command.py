"""Waiting and dead letters, as an operator sees, moves and discards them, and their audit log."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import attrs
import pytest

from pulsar_retry.ops.audit import audit_topic
from pulsar_retry.replay import Redrive
from support.reading import SUBSCRIPTION, drain, receive_different
from support.waiting import eventually

RUN = (sys.executable, "-m", "pulsar_retry")


def test_letters_that_wait(dead, run_json, namespace) -> None:
    """They are listed with their subscription, and shown by error; nothing is consumed."""
    consumer = dead.subscribe()
    dead.fill_retry(6, delay=3_600)

    def retry_topic() -> dict:
        (found,) = [each for each in run_json("dlq", "ls", namespace) if each["kind"] == "retry"]
        return found

    eventually(lambda: retry_topic()["delayed"] == 6)
    topic = retry_topic()
    assert (dead.retry, SUBSCRIPTION, 6) == (
        topic["topic"],
        topic["subscription"],
        topic["backlog"],
    )
    (seen,) = run_json("dlq", "show", dead.retry, "--error", "ValueError", "--attempt", "1")
    assert (3, "ValueError") == (seen["count"], seen["error"])
    one = run_json("dlq", "show", dead.retry, seen["samples"][0])
    assert ("1", 1) == (one["payload"], one["attempt"])
    consumer.close()


def test_discarded(dead, run, run_json, namespace) -> None:
    """They are gone, and nothing is published; others stay, and the audit log says who did it."""
    dead.fill(6)
    code, _, errors = run("discard", dead.dlq, "--yes")
    assert (2, True) == (code, "--all" in errors)
    plan = run_json("discard", dead.dlq, "--search", "ODD", "--dry-run")
    assert (3, {"filtered": 3}, {}, True) == (
        plan["discarded"],
        plan["left"],
        plan["targets"],
        plan["dry_run"],
    )
    assert plan["groups"] == run_json("dlq", "show", dead.dlq, "--reason", "odd")
    assert ["odd"] == [each["reason"] for each in plan["groups"]]
    assert 6 == dead.backlog()
    arguments = ("--search", "ODD", "--yes", "--why", "INC-1", "--by", "ada")
    done = run_json("discard", dead.dlq, *arguments)
    assert (3, {"filtered": 3}, {}) == (done["discarded"], done["left"], done["targets"])
    eventually(lambda: dead.backlog() == 3)
    assert ["0", "2", "4"] == [each["payload"] for each in _letters(run, dead.dlq)]

    (entry,) = run_json("audit", "ls", namespace)
    assert ("discard", "ada", "INC-1", dead.dlq) == (
        entry["verb"],
        entry["by"],
        entry["why"],
        entry["target"],
    )
    assert (["ODD"], 3) == (entry["given"]["search"], entry["result"]["discarded"])
    assert entry["ended"] > entry["at"]
    code, text, _ = run("discard", dead.dlq, "--all", "--limit", "2", "--yes")
    assert (0, True) == (code, "2 discarded" in text)
    eventually(lambda: ["4"] == [each["payload"] for each in _letters(run, dead.dlq)])


def test_a_search_looks_into_payloads_and_properties(dead, run) -> None:
    """Upper and lower case are the same; all texts must occur."""
    dead.send("Zoë's order".encode(), dead.properties(1))
    dead.send(b"\xff\x00binary", dead.properties(2, shop="Ulm"))

    assert ["Zoë's order"] == [each["payload"] for each in _letters(run, dead.dlq, "ZOË")]
    assert ["2"] == [each["properties"]["number"] for each in _letters(run, dead.dlq, "ulm")]
    assert [] == _letters(run, dead.dlq, "ulm", "zoë")


def test_several_dead_letter_topics(dead, run_json, namespace) -> None:
    """A namespace stands for all of them; ids and groups select in each."""
    other = attrs.evolve(dead, topic=f"persistent://{namespace}/shipping")
    consumers = dead.subscribe(), other.subscribe()
    dead.fill(4)
    other.fill(2)

    arguments = (namespace, "--reason", "odd", "--to", "retry", "--yes")
    done = run_json("redrive", *arguments)

    assert {dead.dlq: 2, other.dlq: 1} == {each["source"]: each["redriven"] for each in done}
    for consumer, numbers in zip(consumers, ({b"1", b"3"}, {b"1"}), strict=True):
        assert numbers == receive_different(consumer, len(numbers))
    # Only now: the broker's counts are those of all topics of the namespace.
    assert not any(drain(consumer, but_delayed=True) for consumer in consumers)
    verbs = [(each["verb"], each["target"]) for each in run_json("audit", "ls", namespace)]
    assert {("redrive", dead.dlq), ("redrive", other.dlq)} == set(verbs)


def test_a_sample_says_that_it_is_one(dead, run, run_json, namespace) -> None:
    """Within a short time, only some letters are read; a namespace stands for all its DLQs."""
    dead.fill(2_000)
    code, text, errors = run("dlq", "show", dead.dlq, "--within", "0")
    assert (0, True) == (code, f"only the first 500 of about 2000 letters of {dead.dlq}" in errors)
    assert "250" in text
    code, text, errors = run("dlq", "show", namespace, "--within", "5m")
    assert (0, "") == (code, errors)
    assert "1000" in text
    assert 2_000 == sum(each["count"] for each in run_json("dlq", "show", namespace))
    look = Redrive(dead.dlq, "discard", cluster=dead.cluster, dry_run=True, within=0).run()
    assert (1, 2_000, "sample", True) == (look.read, look.backlog, look.stopped, look.is_complete)
    plan = run_json("discard", dead.dlq, "--all", "--dry-run")
    assert (2_000, 2_000, None) == (plan["discarded"], plan["backlog"], plan["stopped"])


def test_existing_verbs_are_in_the_audit_log(dead, run, run_json, namespace) -> None:
    """A redrive, a seek, and a snapshot that is restored and removed; no dry run is."""
    dead.subscribe().close()
    dead.fill(1)
    assert 0 == run("redrive", dead.dlq, "--dry-run")[0]
    assert 0 == run("redrive", dead.dlq, "--yes", "--why", "mended")[0]
    assert 0 == run("seek", dead.topic, SUBSCRIPTION, "--to", "latest", "--yes")[0]
    assert 0 == run("snapshot", "create", dead.topic, SUBSCRIPTION, "--name", "s")[0]
    assert 0 == run("snapshot", "restore", dead.topic, SUBSCRIPTION, "s", "--yes")[0]
    assert 0 == run("snapshot", "rm", dead.topic, "s", "--yes")[0]
    assert 0 == run("seek", dead.topic, SUBSCRIPTION, "--to", "latest", "--yes", "--no-audit")[0]

    found = run_json("audit", "ls", namespace)
    verbs = ["snapshot rm", "snapshot restore", "seek", "redrive"]
    assert verbs == [each["verb"] for each in found]
    assert ("mended", 1) == (found[-1]["why"], found[-1]["result"]["redriven"])
    assert all(each["ended"] and not each["error"] for each in found)
    assert all("@" in each["by"] for each in found)
    code, text, _ = run("audit", "ls", namespace)
    assert (0, "  why: mended") == (code, text.splitlines()[-1])
    assert 4 * 3 + 1 == len(text.splitlines())
    code, _, errors = run("audit", "ls", f"{namespace}x")
    assert (1, True) == (code, "does not exist" in errors), errors


def test_an_audit_log_that_cannot_be_written(dead, run, admin) -> None:
    """The command says so before it acts, and does nothing; an option goes on without."""
    dead.fill(2)
    topic = audit_topic(dead.dlq)
    admin.create_topic(topic)
    admin.terminate(topic)

    code, _, errors = run("discard", dead.dlq, "--all", "--yes")
    assert (1, True) == (code, "--no-audit" in errors), errors
    assert "nothing was done" in errors
    assert 2 == dead.backlog()
    assert 0 == run("discard", dead.dlq, "--all", "--yes", "--no-audit")[0]
    assert 0 == dead.backlog()


@pytest.mark.parametrize("verb", [("discard", "--all"), ("redrive", "--to", "elsewhere")])
def test_what_is_no_letter_topic_is_left_alone(dead, run, admin, client, verb) -> None:
    """An application's topic, and the audit log; one has to say so."""
    consumer = client.subscribe(dead.topic, "live")
    client.create_producer(dead.topic).send(b"order")
    dead.fill(1)
    assert 0 == run("discard", dead.dlq, "--all", "--yes")[0]
    for topic in (dead.topic, audit_topic(dead.dlq)):
        code, output, errors = run(verb[0], topic, *verb[1:], "--yes", "--no-audit")
        assert (2, "", True) == (code, output, "--any-topic" in errors), errors
    assert 2 == admin.backlog(audit_topic(dead.dlq), "pulsar-retry")
    assert b"order" == consumer.receive(60_000).data()
    consumer.close()
    if verb[0] == "discard":
        assert 0 == run(*verb[:1], dead.topic, *verb[1:], "--any-topic", "--yes")[0]
        assert 0 == admin.backlog(dead.topic, "live")


def test_a_mistyped_filter(dead, run, run_json) -> None:
    """Nothing matches, and the dry run shows what there is; reversed times are refused."""
    dead.subscribe().close()
    dead.fill(3)
    code, output, _ = run("redrive", dead.dlq, "--reason", "event", "--dry-run")
    assert (0, True) == (code, "No letter matches. There are:" in output)
    others = run_json("redrive", dead.dlq, "--reason", "event", "--dry-run")["others"]
    assert {"even": 2, "odd": 1} == {each["reason"]: each["count"] for each in others}
    code, _, errors = run("redrive", dead.dlq, "--since", "1h", "--until", "2h", "--dry-run")
    assert (2, True) == (code, "error: until: expected a time after since" in errors), errors


def test_what_became_of_them(dead, run, run_json, namespace) -> None:
    """The report says it, and so does the audit log, under the job's id that letters carry."""
    consumer = dead.subscribe()
    dead.fill(2)
    code, output, errors = run("redrive", dead.dlq, "--yes", "--limit", "1")
    assert (0, "") == (code, errors)
    assert f"1 of subscription {SUBSCRIPTION} of {dead.topic}" in output
    assert "stay" not in output
    assert output.endswith("published 1: 0 handled, 1 waiting, 0 dead again\n")
    message = consumer.receive(60_000)
    (entry,) = run_json("audit", "ls", namespace)
    assert entry["job"] == message.properties()["REDRIVE_ID"]
    assert {"handled": 0, "waiting": 1, "dead": 0} == entry["result"]["became"]


def test_killed_and_run_again(dead, environment, run_json) -> None:
    """What is meant is gone in the end, and nothing else ever is."""
    dead.fill(3_000)
    command = [*RUN, "discard", dead.dlq, "--reason", "odd", "--yes"]
    for left in (2_700, 2_100):
        process = subprocess.Popen([*command, "--rate", "500"], stdout=subprocess.DEVNULL)
        eventually(lambda left=left: dead.backlog() < left)
        process.send_signal(signal.SIGKILL)
        process.wait(60)

    run_json("discard", dead.dlq, "--reason", "odd", "--yes")
    eventually(lambda: dead.backlog() == 1_500)
    assert list(range(0, 3_000, 2)) == [int(each["payload"]) for each in _exported(dead.dlq)]


def _letters(run, topic: str, *searches: str) -> list[dict]:
    """Return all letters of a topic, through the command."""
    options = [word for each in searches for word in ("--search", each)]
    code, output, errors = run("dlq", "export", topic, *options)
    assert 0 == code, errors
    return [json.loads(each) for each in output.splitlines()]


def _exported(topic: str) -> list[dict]:
    """Return all letters of a topic, through the command in a process of its own."""
    command = [*RUN, "dlq", "export", topic]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, encoding="utf-8")
    return [json.loads(each) for each in done.stdout.splitlines()]

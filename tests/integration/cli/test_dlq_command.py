"""`pulsar-retry dlq`, `redrive` and `doctor`, as an operator uses them."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

from pulsar_retry.admin.transport import Transport
from support.reading import SUBSCRIPTION
from support.replay.redriving import received
from support.waiting import eventually

PUSH = ("--topic", "{topic}", "--subscription", "s", "--endpoint", "http://127.0.0.1:9")
RUN = (sys.executable, "-m", "pulsar_retry")


def test_what_pulsar_client_logs_is_no_result(dead, environment, tmp_path) -> None:
    """One line of ours on standard error is all, also where that is a file."""
    dead.fill(1)
    errors = tmp_path / "errors"
    command = [*RUN, "dlq", "show", dead.dlq, "--json"]
    command += ["--service-url", dead.broker.service_url.replace("pulsar:", "pulsar+ssl:")]
    with errors.open("w") as file:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=file, check=False)

    assert (1, b"") == (done.returncode, done.stdout)
    (line,) = errors.read_text().splitlines()
    told = json.loads(line)["error"]
    assert told.startswith("pulsar+ssl://")
    assert "was not reached: no TLS connection" in told


@pytest.mark.parametrize(
    "arguments",
    [
        ("dlq", "show", "{dlq}"),
        ("dlq", "show", "{dlq}", "1:1"),
        ("dlq", "tail", "{dlq}"),
        ("dlq", "export", "{dlq}"),
        ("redrive", "{dlq}", "--yes"),
        ("redrive", "{dlq}", "--dry-run"),
        ("doctor", "{topic}", "billing"),
        ("push", "serve", *PUSH),
    ],
    ids=lambda each: " ".join(each[:2]),
)
def test_a_wrong_service_url_is_told_at_once(dead, run, arguments) -> None:
    """By each verb, though the REST API answers, in one line."""
    dead.create("keep")
    dead.fill(1)
    said = [each.format(dlq=dead.dlq, topic=dead.topic) for each in arguments]
    code, output, errors = run(*said, "--service-url", "pulsar://127.0.0.1:1")

    assert 1 == code
    told = output.splitlines()[-1:] if arguments[0] == "doctor" else errors.splitlines()
    assert 1 == len(told)
    assert "pulsar://127.0.0.1:1 was not reached: connection refused" in told[0]


def test_every_letter_topic_of_a_namespace(dead, run, run_json, namespace, client) -> None:
    """With its letters, their age, and whose it is, whatever the dialect."""
    dead.subscribe()
    dead.fill(3)
    client.subscribe(
        dead.topic,
        "eu-shipping",
        consumer_type=pulsar.ConsumerType.Shared,
        enable_retry=True,
        naming="tdmq-2.7.2",
    )
    unread = f"persistent://{namespace}/eu-shipping-DLQ"
    dead.cluster.admin().topics.create(unread, partitions=2)
    producer = client.create_producer(f"{unread}-partition-1")
    for _ in range(2):
        producer.send(b"letter")

    found = {each["topic"]: each for each in run_json("dlq", "ls", namespace)}

    letters = found[dead.dlq]
    assert ("dead_letter", SUBSCRIPTION, 3) == (
        letters["kind"],
        letters["subscription"],
        letters["backlog"],
    )
    assert 0 <= letters["oldest_age_seconds"] < 600
    assert {"rate_in", "main_topic", "subscriptions"} <= set(letters)
    retry = found[dead.retry]
    assert ("retry", SUBSCRIPTION, 0, None) == (
        retry["kind"],
        retry["subscription"],
        retry["backlog"],
        retry["oldest_age_seconds"],
    )
    tdmq = found[unread]
    assert ("eu-shipping", [], 2, 2) == (
        tdmq["subscription"],
        tdmq["subscriptions"],
        tdmq["backlog"],
        tdmq["partitions"],
    )
    assert 0 <= tdmq["oldest_age_seconds"] < 600
    assert f"persistent://{namespace}/eu-shipping-RETRY" in found

    _, output, _ = run("dlq", "ls", namespace)
    assert "topic" in output.splitlines()[0]
    assert "2, no subscription" in output
    assert "-RETRY" not in output


def test_a_first_letter_that_the_broker_cannot_show(dead, client, run_json) -> None:
    """It is a chunk that is compressed, and its age is not known; that ends no list."""
    zipped = {"chunking_enabled": True, "compression_type": pulsar.CompressionType.ZLib}
    # Its producer keeps the topic, which has no subscription.
    producer = client.create_producer(dead.dlq, batching_enabled=False, **zipped)
    producer.send(os.urandom(6_000_000), properties=dead.properties(0))
    namespace = dead.topic.removeprefix("persistent://").rpartition("/")[0]

    found = {each["topic"]: each for each in run_json("dlq", "ls", namespace)}[dead.dlq]

    assert (2, None) == (found["backlog"], found["oldest_age_seconds"])


@pytest.mark.parametrize("through", ["pulsar-retry", "ops-team"])
def test_letter_topics_with_other_names(dead, run, run_json, namespace, client, through) -> None:
    """Their first letters say whose they are; other topics are not taken for them."""
    graves, later = (f"persistent://{namespace}/{each}" for each in ("graveyard", "later"))
    copies = f"persistent://{namespace}/copies"
    properties = dead.properties(1)
    sent = {
        graves: [properties, properties],
        later: [{**properties, "RETRY_TOPIC": later}],
        copies: [properties, {}, properties],  # by an application that handled a letter
        dead.topic: [properties],  # redriven to its origin
    }
    for topic, letters in sent.items():
        name = SUBSCRIPTION if topic in {copies, dead.topic} else through
        client.subscribe(topic, name, consumer_type=pulsar.ConsumerType.Shared).close()
        producer = client.create_producer(topic, batching_enabled=False)
        for each in letters:
            producer.send(b"letter", properties=each)

    found = {each["topic"]: each for each in run_json("dlq", "ls", namespace)}

    assert {graves, later} == set(found)
    names = ("kind", "main_topic", "subscription", "backlog", "subscriptions")
    whose = (dead.topic, SUBSCRIPTION)
    assert ("dead_letter", *whose, 2, [through]) == tuple(map(found[graves].get, names))
    assert ("retry", *whose, 1, [through]) == tuple(map(found[later].get, names))
    _, output, _ = run("dlq", "ls", namespace)
    assert ["graveyard", "dead", "letter", SUBSCRIPTION, "2"] in [
        line.split()[:5] for line in output.splitlines()
    ]


def test_the_letters_of_all_namespaces(dead, run, run_json, namespace) -> None:
    """Without a name; those of other namespaces have their full names."""
    dead.create("keep")
    dead.fill(2)
    assert dead.dlq in {each["topic"] for each in run_json("dlq", "ls")}
    _, output, _ = run("dlq", "ls")
    rows = [each.split()[:3] for each in output.splitlines()]
    assert [f"{namespace}/{dead.dlq.rpartition('/')[2]}", "dead", "letter"] in rows


def test_a_namespace_that_is_not_there(run) -> None:
    """One line, and exit code 1."""
    code, _, errors = run("dlq", "ls", "public/none-such")
    assert (1, 1) == (code, len(errors.splitlines()))


def test_what_is_in_a_dead_letter_topic(dead, run, run_json) -> None:
    """By reason; one in full, with whatever is in it made harmless; nothing is consumed."""
    dead.fill(5)
    evil = {"FAILURE_REASON": "evil", "FAILURE_MESSAGE": "\x1b[2Jgone", "shop": "\x1b]0;x\x07"}
    dead.send(b"\x1b[31mred", evil)
    dead.send(b"\xff\x00", {"FAILURE_REASON": "binary"})
    dead.send(None, {"FAILURE_REASON": "null"})

    groups = run_json("dlq", "show", dead.dlq)

    assert {"even": 3, "odd": 2, "evil": 1, "binary": 1, "null": 1} == {
        each["reason"]: each["count"] for each in groups
    }
    _, output, _ = run("dlq", "show", dead.dlq)
    assert "\x1b" not in output
    where = {each["reason"]: each["samples"][0] for each in groups}
    for reason, sample in where.items():
        code, output, _ = run("dlq", "show", dead.dlq, sample)
        assert (0, True) == (code, reason in output)
        assert "\x1b" not in output
    assert b"\xff\x00" == base64.b64decode(
        run_json("dlq", "show", dead.dlq, where["binary"])["payload_base64"]
    )
    assert "payload" not in run_json("dlq", "show", dead.dlq, where["null"])
    (only,) = run_json("dlq", "show", dead.dlq, "--property", "number=3", "--limit", "4")
    assert ("odd", 1) == (only["reason"], only["count"])
    (odd,) = run_json("dlq", "show", dead.dlq, "--reason", "odd", "--limit", "2", "--payloads", "3")
    assert (2, ["1", "3"]) == (odd["count"], [each["payload"] for each in odd["payloads"]])
    assert odd["oldest"] <= odd["newest"]
    _, output, _ = run("dlq", "show", dead.dlq, "--reason", "odd", "--payloads", "1")
    head, below, _, sample, *_ = output.splitlines()
    assert head.split() == ["letters", "oldest", "newest", "reason", "error", "fingerprint"]
    assert ("sample", odd["samples"][0]) == (below.strip(), sample.strip())
    assert f"  {odd['samples'][0]}  1" in output.splitlines()
    _, output, _ = run("dlq", "show", dead.dlq, "--reason", "ood")
    assert "No letter matches. There are:" in output
    assert ["3", "2", "1", "1", "1"] == re.findall("^[0-9]", output, re.MULTILINE)
    assert 8 == dead.backlog()
    assert {"keep"} == set(dead.admin.stats(dead.dlq)["subscriptions"])


def test_letters_of_a_batch_and_of_partitions_have_ids(dead, run_json) -> None:
    """Each one can be looked at."""
    dead.create("keep", partitions=2)
    dead.fill(8, batching_enabled=True, batching_max_publish_delay_ms=500)
    code_of = {}
    for each in run_json("dlq", "show", dead.dlq):
        for sample in each["samples"]:
            facts = run_json("dlq", "show", dead.dlq, sample)
            code_of[sample] = facts["payload"]
    assert 6 == len(set(code_of.values())) == len(code_of)


@pytest.mark.parametrize("asked", ["99:99", "999999:0:-1"])
def test_a_letter_that_is_not_there(dead, run, asked) -> None:
    """One line, and exit code 1."""
    dead.fill(1)
    code, _, errors = run("dlq", "show", dead.dlq, asked)
    assert (1, f"error: there is no letter {asked}\n") == (code, errors)


def test_export(dead, run) -> None:
    """JSON Lines, with every byte of every payload; an output that is full is a failure."""
    dead.fill(3)
    dead.send(b"\xff\x00", {})
    dead.send(None, {})

    code, output, _ = run("dlq", "export", dead.dlq)
    lines = [json.loads(each) for each in output.splitlines()]
    assert (0, ["0", "1", "2", None, None]) == (code, [each.get("payload") for each in lines])
    assert b"\xff\x00" == base64.b64decode(lines[3]["payload_base64"])
    output = run("dlq", "export", dead.dlq, "--reason", "odd")[1]
    assert ["1"] == [json.loads(each)["payload"] for each in output.splitlines()]
    assert 5 == dead.backlog()
    if Path("/dev/full").exists():
        with Path("/dev/full").open("w") as full:
            export = [*RUN, "dlq", "export", dead.dlq]
            done = subprocess.run(export, stdout=full, stderr=subprocess.PIPE, check=False)
        assert (1, 1) == (done.returncode, len(done.stderr.splitlines())), done.stderr


@pytest.fixture
def start(environment) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts the command in a process of its own."""
    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [*RUN, *arguments]
        process = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL, text=True, env=os.environ
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_tail_shows_what_arrives(dead, start) -> None:
    """And nothing that was there, as far as it is asked for; Ctrl-C is a clean end."""
    dead.fill(1)
    process = start("dlq", "tail", dead.dlq, "--json", "--reason", "late", "--count", "2")
    eventually(lambda: len(dead.admin.stats(dead.dlq)["subscriptions"]) == 2)
    dead.send(b"other", {"FAILURE_REASON": "early"})
    dead.send(b"new", {"FAILURE_REASON": "late"})

    facts = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)

    assert ("late", "new") == (facts["reason"], facts["payload"])
    assert 0 == process.wait(60)
    assert 3 == dead.backlog()


def test_redrive_looks_first_and_then_does_it(dead, run, run_json) -> None:
    """Without a terminal it does nothing that was not said."""
    consumer = dead.subscribe()
    dead.fill(4)

    assert 4 == run_json("redrive", dead.dlq, "--dry-run")["redriven"]
    code, _, errors = run("redrive", dead.dlq)
    assert (2, True) == (code, "--yes" in errors)
    assert 4 == dead.backlog()
    code, output, _ = run("redrive", dead.dlq, "--reason", "odd", "--yes")
    assert 0 == code
    assert output.startswith("2 redriven")
    assert f"2 to {dead.retry}" in output
    assert "2 stay: left out by the filter" in output
    assert 2 == run_json("redrive", dead.dlq, "--yes")["redriven"]
    received(consumer, 4)


def test_redrive_that_leaves_something_fails(dead, run) -> None:
    """Exit code 1, and what to do about it."""
    dead.fill(1)
    code, output, errors = run("redrive", dead.dlq, "--yes")
    assert (1, True) == (code, "1 stay: no topic to publish them to" in output)
    assert "start a consumer with enable_retry, or use --to origin" in errors


def test_an_interrupted_redrive_goes_on(dead, start, run_json) -> None:
    """It settles what is under way, says so and ends with 1; the same command goes on."""
    consumer = dead.subscribe()
    dead.fill(400)
    arguments = ("redrive", dead.dlq, "--since", "3650d", "--yes", "--json")
    process = start(*arguments, "--rate", "20")
    eventually(lambda: dead.backlog() < 380)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    first = json.loads(output)

    assert (1, "cancelled") == (process.returncode, first["stopped"])
    assert 400 - first["redriven"] == dead.backlog()
    second = run_json(*arguments[:-1])
    assert 400 - first["redriven"] == second["redriven"]
    messages = received(consumer, 400)
    assert 400 == len({each.properties()["DEDUPE_ID"] for each in messages})


def test_watching_ends_with_ctrl_c(dead, start, run_json, namespace) -> None:
    """The redrive is done and recorded by then, and so it is no failure."""
    consumer = dead.subscribe()
    dead.fill(2)
    process = start("redrive", dead.dlq, "--yes", "--wait", "1h", "--json")
    consumer.acknowledge(consumer.receive(60_000))
    eventually(lambda: [each for each in run_json("audit", "ls", namespace) if each["ended"]])

    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)

    assert (0, "") == (process.returncode, errors)
    assert {"handled": 1, "waiting": 1, "dead": 0} == json.loads(output)["became"]


def test_doctor(dead, run, run_json, admin, namespace) -> None:
    """A subscription in good health, and what is said of one that is not."""
    consumer = dead.subscribe()
    dead.fill(1)

    findings = run_json("doctor", dead.topic, SUBSCRIPTION)

    verdicts = {each["check"]: each["verdict"] for each in findings}
    assert "error" not in verdicts.values()
    assert {
        "REST API",
        "broker",
        "topic",
        "subscription",
        "delayed delivery",
        "waiting letters",
        "retry topic",
        "dead-letter topic",
        "backlog quota",
        "subscription expiry",
        "batches",
        "names",
        "permissions",
        "creation",
        "owners",
    } == set(verdicts)
    assert "unknown" not in verdicts.values()
    rest = dead.cluster.admin()
    rest.subscriptions.create(dead.dlq, "pulsar-retry", at="earliest")
    (found,) = [
        each
        for each in run_json("doctor", dead.topic, SUBSCRIPTION)
        if each["check"] == "dead-letter topic"
    ]
    assert "warning" == found["verdict"]
    assert "is kept for keep and for pulsar-retry" in found["text"]
    rest.subscriptions.delete(dead.dlq, "pulsar-retry")
    consumer.close()
    rest.subscriptions.delete(dead.dlq, "keep")
    rest.subscriptions.delete(dead.retry, SUBSCRIPTION)
    rest.topics.create(dead.topic.rsplit("/", 1)[0] + f"/{SUBSCRIPTION}-DLQ")
    code, output, _ = run("doctor", dead.topic, SUBSCRIPTION)
    assert 1 == code
    assert "no subscription and no retention: the broker deletes dead letters" in output
    assert f"has no subscription {SUBSCRIPTION}: nobody reads its letters" in output
    assert "check which names the consumers use" in output


def test_doctor_of_a_dead_letter_topic(dead, run, run_json, client, namespace) -> None:
    """Its name says whose it is; letters of other subscriptions are named."""
    dead.subscribe()
    dead.fill(2)
    dead.send(b"strange", dead.properties(1, REAL_SUBSCRIPTION="shipping"))
    findings = {each["check"]: each for each in run_json("doctor", dead.dlq)}
    assert "ok" == findings["subscription"]["verdict"]
    assert "warning" == findings["owners"]["verdict"]
    strange = (
        f"of the first 3 letters of {dead.dlq}, 1 of the subscription shipping of {dead.topic}"
    )
    assert strange in findings["owners"]["text"]
    other = f"persistent://{namespace}/strange-DLQ"
    client.create_producer(other).send(b"letter")
    code, _, errors = run("doctor", other)
    assert (2, True) == (code, "does not say for certain whose letters it has" in errors)


def test_doctor_sees_what_is_not_created_by_itself(dead, run, namespace) -> None:
    """And what producers need."""
    dead.create("keep")
    rest = Transport(dead.cluster)
    off = {"allowAutoTopicCreation": False}
    rest.json("POST", f"namespaces/{namespace}/autoTopicCreation", off)
    for policy in ("encryptionRequired", "schemaValidationEnforced"):
        rest.json("POST", f"namespaces/{namespace}/{policy}", body=True)

    def findings() -> dict[str, dict[str, str]]:
        _, output, _ = run("doctor", dead.topic, SUBSCRIPTION, "--json")
        return {each["check"]: each for each in json.loads(output)}

    eventually(lambda: "schemas" in findings())
    found = findings()
    assert "error" == found["creation"]["verdict"]
    assert f"{dead.retry} is missing, and is not created" in found["creation"]["text"]
    assert "must encrypt" in found["encryption"]["text"]


def test_doctor_takes_no_dead_letter_topic_for_a_good_one(dead, run_json) -> None:
    """It may never have been there, have another name, or be deleted already."""
    dead.subscribe()
    findings = {each["check"]: each for each in run_json("doctor", dead.topic, SUBSCRIPTION)}
    assert "unknown" == findings["dead-letter topic"]["verdict"]


def test_doctor_sees_what_policies_delete_and_refuse(dead, run, namespace) -> None:
    """A namespace whose backlogs are evicted, whose messages expire, and with short delays."""
    dead.subscribe()
    rest = Transport(dead.cluster)
    quota = {"limitSize": 1 << 30, "limitTime": -1, "policy": "consumer_backlog_eviction"}
    rest.json("POST", f"namespaces/{namespace}/backlogQuota", quota)
    rest.json("POST", f"namespaces/{namespace}/subscriptionExpirationTime", 60)
    rest.json("POST", f"namespaces/{namespace}/messageTTL", 3600)
    rest.json("POST", f"namespaces/{namespace}/encryptionRequired", True)
    delays = {"active": True, "tickTime": 5000, "maxDeliveryDelayInMillis": 60_000}
    rest.json("POST", f"namespaces/{namespace}/delayedDelivery", delays)

    def told() -> str:
        code, output, _ = run("doctor", dead.topic, SUBSCRIPTION)
        return output if code == 1 else ""

    # Brokers see a namespace's new policies a moment later.
    eventually(lambda: "the broker refuses delays above 1m" in told())
    output = told()
    assert f"the broker deletes unacknowledged messages: {dead.topic}, {dead.retry}" in output
    assert f"messages in {dead.retry} expire after 3600 s" in output
    assert "that nobody uses for 60 min are deleted" in output
    assert "up to a tick of 5s early or late" in output
    assert f"producers in {namespace} must encrypt" in output
    assert "permissions" not in output  # an attempt would only last long


def test_doctor_knows_an_exclusive_subscription(dead, run_json, client) -> None:
    """Its retries wait, too, so nothing is wrong with it."""
    client.subscribe(dead.topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Exclusive)
    (found,) = [
        each
        for each in run_json("doctor", dead.topic, SUBSCRIPTION)
        if each["check"] == "subscription"
    ]
    assert ("ok", "Exclusive, 1 consumers") == (found["verdict"], found["text"])


def test_doctor_where_nothing_is(dead, run, broker) -> None:
    """A topic that is not there, a REST API that is not there."""
    code, output, _ = run("doctor", dead.topic, SUBSCRIPTION)
    assert (1, True) == (code, "does not exist" in output)
    code, output, _ = run("doctor", "t", "s", "--admin-url", "http://127.0.0.1:1")
    assert (1, True) == (code, "was not reached" in output)

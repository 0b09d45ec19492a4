"""Waiting and dead letters, as an operator moves them, and the audit log of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from pulsar_retry.admin.transport import Transport
from pulsar_retry.errors import AdminForbiddenError
from pulsar_retry.ops.audit import audit_topic
from support.reading import SUBSCRIPTION, eventually
from support.replay.redriving import received
from support.replay.waiting import fill_retry

RUN = (sys.executable, "-m", "pulsar_retry")


def test_letters_that_wait(dead, run, run_json, namespace) -> None:
    """They are listed with their subscription, and shown by error, attempt and due time."""
    consumer = dead.subscribe()
    fill_retry(dead, 6, delay=3_600)
    eventually(lambda: run_json("retry", "ls", namespace)[0]["delayed"] == 6)

    (topic,) = run_json("retry", "ls", namespace)
    assert (dead.retry, SUBSCRIPTION, 6) == (
        topic["topic"],
        topic["subscription"],
        topic["backlog"],
    )
    seen = run_json("retry", "show", dead.retry, "--error", "ValueError", "--list", "2")
    assert (3, 0, {"1": 3}) == (seen["count"], seen["overdue"], seen["attempts"])
    assert [b"1", b"3"] == [each["payload"].encode() for each in seen["letters"]]
    assert seen["next_due"] <= seen["letters"][1]["due"] <= seen["last_due"]
    assert 0 == run_json("retry", "show", dead.retry, "--due-before", "30m")["count"]
    assert 6 == run_json("retry", "show", dead.retry, "--due-before", "2h")["count"]
    code, text, _ = run("retry", "show", dead.retry, "--list", "1")
    assert 0 == code
    assert "6 letters, 0 of them due" in text
    assert "6 after attempt 1" in text
    one = run_json("retry", "show", dead.retry, seen["letters"][0]["message_id"])
    assert ("1", seen["letters"][0]["due"]) == (one["payload"], one["due"])
    consumer.close()


def test_cancelled_and_restored(dead, run, run_json, namespace) -> None:
    """A restored letter is what it was, and waits for the rest of its delay."""
    consumer = dead.subscribe()
    fill_retry(dead, 6, delay=30)
    code, _, errors = run("retry", "cancel", dead.retry, "--yes")
    assert (2, True) == (code, "--all" in errors)

    plan = run_json("retry", "cancel", dead.retry, "--reason", "odd", "--dry-run")
    assert (3, 3, True) == (plan["count"], plan["left"], plan["dry_run"])
    arguments = ("--reason", "odd", "--yes", "--why", "INC-1", "--by", "ada")
    done = run_json("retry", "cancel", dead.retry, *arguments)
    assert (3, f"{dead.retry}-ARCHIVE", True) == (done["count"], done["archive"], done["unloaded"])

    (entry,) = run_json("audit", "ls", namespace)
    assert ("retry cancel", "ada", "INC-1", dead.retry, done["job"]) == (
        entry["verb"],
        entry["by"],
        entry["why"],
        entry["target"],
        entry["job"],
    )
    assert (["odd"], 3) == (entry["given"]["reason"], entry["result"]["count"])
    assert entry["ended"] > entry["at"]
    archived = run_json("dlq", "show", done["archive"])
    assert [3] == [each["letters"] if "letters" in each else each["count"] for each in archived]

    job = f"ARCHIVED_JOB={done['job']}"
    back = run_json("retry", "restore", dead.retry, "--property", job, "--yes")
    assert 3 == back["redriven"]
    again = run_json("retry", "restore", dead.retry, "--property", job, "--yes")
    assert 0 == again["redriven"]
    found = {message.data(): message.properties() for message in received(consumer, 6, 90_000)}
    assert {b"%d" % number for number in range(6)} == set(found)
    properties = dict(found[b"1"])
    assert properties.pop("RESTORED_FROM").startswith(f"{dead.retry}-ARCHIVE ")
    assert 0 < int(properties.pop("DELAY_TIME")) < 30_000
    expected = {**found[b"0"], "number": "1", "FAILURE_REASON": "odd"}
    assert expected.keys() - {"DELAY_TIME"} == properties.keys()
    assert ("1", "odd") == (properties["RECONSUMETIMES"], properties["FAILURE_REASON"])


def test_expedited(dead, run, run_json, namespace) -> None:
    """One letter is due now, by its id; the command is in the audit log."""
    consumer = dead.subscribe()
    fill_retry(dead, 3, delay=3_600)
    letters = run_json("retry", "show", dead.retry, "--list", "3")["letters"]

    wanted = letters[1]["message_id"]
    done = run_json("retry", "expedite", dead.retry, "--id", wanted, "--yes")

    assert (1, 2) == (done["count"], done["left"])
    (message,) = received(consumer, 1)
    assert letters[1]["payload"].encode() == message.data()
    assert f"{dead.retry} {wanted}" == message.properties()["REPUBLISHED_FROM"]
    assert "retry expedite" == run_json("audit", "ls", namespace)[0]["verb"]


def test_archived_and_restored(dead, run, run_json) -> None:
    """An archived letter comes back to the DLQ as it was; by its old id, too."""
    dead.fill(10)
    before = {each["message_id"]: each for each in _letters(run, dead.dlq)}
    done = run_json("dlq", "archive", dead.dlq, "--reason", "odd", "--yes", "--why", "old")
    assert (5, {"filtered": 5}) == (done["redriven"], done["left"])
    assert 5 == dead.backlog()
    odd = [each for each, facts in before.items() if facts["reason"] == "odd"]

    one = run_json("dlq", "restore", dead.dlq, "--id", odd[2], "--yes")
    assert 1 == one["redriven"]
    (restored,) = [each for each in _letters(run, dead.dlq) if each["reason"] == "odd"]
    assert before[odd[2]]["payload"] == restored["payload"]
    gone = {"RESTORED_FROM"}
    assert before[odd[2]]["properties"].keys() == restored["properties"].keys() - gone
    rest = run_json("dlq", "restore", dead.dlq, "--all", "--yes")
    assert 4 == rest["redriven"]
    eventually(lambda: dead.backlog() == 10)


def test_discarded(dead, run, run_json) -> None:
    """A record without the payload stays, and nothing can be restored."""
    dead.fill(6)
    code, _, errors = run("dlq", "discard", dead.dlq, "--yes")
    assert (2, True) == (code, "--all" in errors)
    done = run_json("dlq", "discard", dead.dlq, "--search", "ODD", "--yes", "--by", "ada")
    assert 3 == done["redriven"]
    assert 3 == dead.backlog()

    records = _letters(run, f"{dead.dlq}-ARCHIVE")
    assert [""] * 3 == [each["payload"] for each in records]
    assert {("odd", "discarded", "ada")} == {
        (each["reason"], each["properties"]["ARCHIVED_AS"], each["properties"]["ARCHIVED_BY"])
        for each in records
    }
    back = run_json("dlq", "restore", dead.dlq, "--all", "--yes")
    assert (0, {"discarded": 3}) == (back["redriven"], back["left"])


def test_a_search_looks_into_payloads_and_properties(dead, run) -> None:
    """Upper and lower case are the same; all texts must occur."""
    dead.send("Zoë's order".encode(), dead.properties(1))
    dead.send(b"\xff\x00binary", dead.properties(2, shop="Ulm"))

    assert ["Zoë's order"] == [each["payload"] for each in _letters(run, dead.dlq, "ZOË")]
    assert ["2"] == [each["properties"]["number"] for each in _letters(run, dead.dlq, "ulm")]
    assert [] == _letters(run, dead.dlq, "ulm", "zoë")


def test_several_dead_letter_topics(dead, run_json, admin, namespace) -> None:
    """A namespace stands for all of them; ids and groups select in each."""
    admin.keep_unused(namespace)
    consumer = dead.subscribe()
    dead.fill(4)
    other = f"persistent://{namespace}/shipping-{SUBSCRIPTION}-DLQ"
    rest = dead.cluster.admin()
    rest.topics.create(other)
    rest.subscriptions.create(other, "keep", at="earliest")
    producer = dead.client.create_producer(other)
    for number in (1, 2):
        producer.send(b"%d" % (10 + number), properties=dead.properties(number))

    arguments = (namespace, "--reason", "odd", "--to", "retry", "--yes")
    done = run_json("dlq", "redrive", *arguments)

    assert {dead.dlq: 2, other: 1} == {each["source"]: each["redriven"] for each in done}
    assert {b"1", b"3", b"11"} == {each.data() for each in received(consumer, 3)}
    verbs = [(each["verb"], each["target"]) for each in run_json("audit", "ls", namespace)]
    assert {("dlq redrive", dead.dlq), ("dlq redrive", other)} == set(verbs)


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
    code, text, _ = run("dlq", "archive", dead.dlq, "--all", "--dry-run", "--within", "0")
    assert (0, True) == (code, "Only the first 1 of about 2000 letters were read" in text)
    plan = run_json("dlq", "archive", dead.dlq, "--all", "--dry-run")
    assert (2_000, 2_000, None) == (plan["redriven"], plan["backlog"], plan["stopped"])


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
    assert (0, 5) == (code, len(text.splitlines()))


def test_an_audit_log_that_cannot_be_written(dead, run, admin) -> None:
    """The command says so before it acts, and does nothing; an option goes on without."""
    dead.fill(2)
    topic = audit_topic(dead.dlq)
    admin.create_topic(topic)
    admin.terminate(topic)

    code, _, errors = run("dlq", "archive", dead.dlq, "--all", "--yes")
    assert (1, True) == (code, "--no-audit" in errors), errors
    assert "nothing was done" in errors
    assert 2 == dead.backlog()
    assert 0 == run("dlq", "archive", dead.dlq, "--all", "--yes", "--no-audit")[0]
    assert 0 == dead.backlog()


def test_a_role_that_may_not_unload(dead, run, monkeypatch) -> None:
    """Letters are cancelled; a warning says what is not certain."""
    consumer = dead.subscribe()
    fill_retry(dead, 2, delay=3_600)
    whole = Transport.json

    def refused(self, method, path, *arguments, **query):
        if path.endswith("/unload"):
            raise AdminForbiddenError(403, path, "no right")
        return whole(self, method, path, *arguments, **query)

    monkeypatch.setattr(Transport, "json", refused)
    code, text, errors = run("retry", "cancel", dead.retry, "--all", "--yes")
    assert 0 == code
    assert "2 cancelled, 0 stay" in text
    assert "could not be unloaded" in errors
    assert "a broker that is killed within a minute" in errors
    consumer.close()


@pytest.mark.parametrize("verb", [pytest.param("archive", marks=pytest.mark.nightly), "restore"])
def test_killed_and_run_again(dead, environment, run_json, verb) -> None:
    """No letter is lost; each is in the DLQ or the archive, and after all exactly once."""
    dead.fill(3_000)
    if verb == "restore":
        assert 3_000 == run_json("dlq", "archive", dead.dlq, "--all", "--yes")["redriven"]
    command = [*RUN, "dlq", verb, dead.dlq, "--all", "--yes"]
    for _ in range(2):
        process = subprocess.Popen([*command, "--rate", "1500"], stdout=subprocess.DEVNULL)
        moved = _moved(dead, verb)
        # It may have moved all before that is seen.
        eventually(
            lambda moved=moved, process=process: (
                _moved(dead, verb) > moved + 100 or process.poll() is not None
            ),
            120,
        )
        process.send_signal(signal.SIGKILL)
        process.wait(60)

    run_json("dlq", verb, dead.dlq, "--all", "--yes")
    if verb == "archive":
        run_json("dlq", "restore", dead.dlq, "--all", "--yes")
    numbers = [int(each["payload"]) for each in _exported(dead.dlq)]
    assert set(range(3_000)) == set(numbers)
    if verb == "archive":
        assert 3_000 == len(numbers)
    else:  # a copy that a kill leaves names the same archived letter
        assert 3_000 <= len(numbers) < 4_500


@pytest.mark.parametrize("verb", ["cancel", pytest.param("expedite", marks=pytest.mark.nightly)])
def test_waiting_letters_and_kills(dead, environment, run_json, verb) -> None:
    """No letter is lost: after the same command each is cancelled, or due, exactly once."""
    dead.subscribe().close()
    fill_retry(dead, 4_000, delay=3_600)
    command = [*RUN, "retry", verb, dead.retry, "--all", "--yes"]
    for goal in (1, 2):  # a thousand letters are published, and then acknowledged
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        eventually(lambda goal=goal: _published(dead, verb) >= 1_000 * goal, 120)
        process.send_signal(signal.SIGKILL)
        process.wait(60)

    run_json("retry", verb, dead.retry, "--all", "--yes")
    if verb == "cancel":
        assert 0 == run_json("retry", "show", dead.retry)["count"]
        run_json("retry", "restore", dead.retry, "--all", "--yes")
    seen = run_json("retry", "show", dead.retry)
    assert (4_000, 0 if verb == "cancel" else 4_000) == (seen["count"], seen["overdue"])
    numbers = {int(each["payload"]) for each in _exported(dead.retry)}
    assert set(range(4_000)) == numbers


def _published(dead, verb: str) -> int:
    """Return how many letters a command has published so far."""
    admin = dead.cluster.admin()
    topic = f"{dead.retry}-ARCHIVE" if verb == "cancel" else dead.retry
    if not admin.topics.exists(topic):
        return 0
    entries = admin.topics.internal_stats(topic)["entriesAddedCounter"]
    return int(entries) - (0 if verb == "cancel" else 4_000)


def _moved(dead, verb: str) -> int:
    """Return how many letters have left."""
    topic = f"{dead.dlq}-ARCHIVE" if verb == "restore" else dead.dlq
    subscription = "pulsar-retry" if verb == "restore" else "keep"
    stats = dead.cluster.admin().topics.stats(topic)["subscriptions"].get(subscription)
    return 3_000 - (stats["msgBacklog"] if stats else 3_000)


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

"""`pulsar-retry seek` and `snapshot`, as an operator uses them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry import cli
from pulsar_retry.replay import Snapshot, seek
from support.reading import SOON, SUBSCRIPTION
from support.replay.replaying import consume, delivered, drained, firsts, trim
from support.waiting import eventually

EARLIEST = pulsar.InitialPosition.Earliest

#: Seeks, and dies by -9 at the *n*-th call of what it is told.
KILLED = """
import os, signal, sys
from pulsar_retry.admin.subscriptions import Subscriptions
from pulsar_retry.cli import main
from pulsar_retry.replay.seeking import mover as seek_moving
where, count = sys.argv.pop(1), int(sys.argv.pop(1))
owners = {"reset": Subscriptions, "acknowledge": seek_moving, "_publish": seek_moving.Mover}
owner = owners[where]
original = getattr(owner, where)
calls = 0
def dies(*arguments, **options):
    global calls
    calls += 1
    if calls == count and where == "acknowledge":
        os.kill(os.getpid(), signal.SIGKILL)
    result = original(*arguments, **options)
    if calls == count:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
setattr(owner, where, dies)
sys.exit(main())
"""


def killed(where: str, count: int, *arguments: str) -> None:
    """Run the command until it dies."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, where, str(count), *arguments],
        env=os.environ,
        capture_output=True,
        check=False,
    )
    assert -signal.SIGKILL == done.returncode, done.stderr


@pytest.fixture
def run(broker: Any, monkeypatch: Any, capsys: Any) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs the command here: exit code, output, errors."""
    monkeypatch.setenv("PULSAR_SERVICE_URL", broker.service_url)
    monkeypatch.setenv("PULSAR_ADMIN_URL", broker.admin_url)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(arguments)
        return code, *capsys.readouterr()

    return run


def test_seek(run, admin, topic, consumer, publish):
    """It looks, moves with --yes, and says in words and in JSON what was done."""
    publish(b"1")
    consume(consumer, 1)
    drained(admin, topic)
    arguments = ("seek", topic, SUBSCRIPTION, "--to", "1h")

    code, output, errors = run(*arguments, "--dry-run", "--json")
    assert 0 == code, errors
    assert (1, True) == ((found := json.loads(output))["replayed"], found["dry_run"])
    code, _, errors = run(*arguments)
    assert 2 == code
    assert "add --yes" in errors
    assert [] == delivered(consumer)

    code, output, errors = run(*arguments, "--yes")
    assert 0 == code, errors
    assert "1 to be delivered again, 0 purged" in output
    assert firsts("1") == delivered(consumer)


def test_errors(run, admin, topic, consumer, publish):
    """What is typed wrongly is 2, what cannot be done 1, each with what helps."""
    publish(b"1")
    began = datetime.now(UTC)
    consume(consumer, 1)
    eventually(lambda: datetime.now(UTC) - began > timedelta(seconds=6))
    trim(admin, topic)
    publish(b"2")

    code, _, errors = run("seek", topic, SUBSCRIPTION, "--to", "tomorrow", "--yes")
    assert 2 == code
    assert "to='tomorrow'" in errors
    code, _, errors = run("seek", topic, SUBSCRIPTION, "--to", "1h", "--yes")
    assert 1 == code
    assert "--partial" in errors
    code, _, errors = run("seek", topic, "other", "--to", "1h", "--yes")
    assert 1 == code
    assert "no subscription 'other'" in errors
    assert 0 == run("seek", topic, SUBSCRIPTION, "--to", "1h", "--yes", "--partial")[0]


def test_snapshots(run, admin, namespace, topic, consumer, publish):
    """From making one to removing it, by the command line alone."""
    publish(b"1")
    consumer.receive(SOON)
    code, name, errors = run("snapshot", "create", topic, SUBSCRIPTION)
    assert 0 == code, errors
    name = name.strip()

    for where in ((topic,), ("--namespace", namespace)):
        found = json.loads(run("snapshot", "ls", *where, "--json")[1])
        assert [name] == [each["name"] for each in found]
    assert name in run("snapshot", "ls", topic)[1]

    assert 0 == run("seek", topic, SUBSCRIPTION, "--to", "latest", "--yes")[0]
    code, output, errors = run("snapshot", "restore", topic, SUBSCRIPTION, name, "--yes", "--json")
    assert 0 == code, errors
    assert 1 == json.loads(output)["replayed"]
    code, _, errors = run("snapshot", "restore", topic, "new", name, "--yes")
    assert 0 == code, errors
    assert 1 == admin.backlog(topic, "new")

    assert 0 == run("snapshot", "rm", topic, name, "--yes")[0]
    assert "[]" == run("snapshot", "ls", topic, "--json")[1].strip()
    code, _, errors = run("snapshot", "restore", topic, SUBSCRIPTION, name, "--yes")
    assert 1 == code
    assert "no snapshot" in errors


def test_pins_are_hidden(run, namespace, topic, consumer, publish):
    """A snapshot's own subscriptions are no letters: `dlq ls` counts nothing of them."""
    publish(b"1")
    consumer.reconsume_later(consumer.receive(SOON))
    assert 0 == run("snapshot", "create", topic, SUBSCRIPTION)[0]
    assert 0 == run("seek", topic, SUBSCRIPTION, "--to", "latest", "--yes")[0]

    found = json.loads(run("dlq", "ls", namespace, "--json")[1])

    assert [(0, [SUBSCRIPTION])] == [(each["backlog"], each["subscriptions"]) for each in found]


@pytest.mark.parametrize(
    ("where", "count"), [("reset", 1), ("reset", 2), ("_publish", 1), ("acknowledge", 3)]
)
def test_killed(run, admin, topic, subscription, subscribe, publish, where, count):
    """A seek that is killed anywhere is run again: nothing is lost, and no letter is left over."""
    admin.create_partitioned_topic(topic, 2)
    consumer = subscribe(
        initial_position=EARLIEST, dead_letter_policy=pr.DeadLetterPolicy(9), delay_levels="1h"
    )
    gone, there = [f"gone{n}" for n in range(4)], [f"there{n}" for n in range(4)]
    for name in gone:
        publish(name.encode(), partition_key=name)
    for _ in gone:
        consumer.reconsume_later(consumer.receive(SOON))
    for n in range(2):
        trim(admin, f"{topic}-partition-{n}")
    for name in there:
        publish(name.encode(), partition_key=name)
    for _ in there:
        consumer.reconsume_later(consumer.receive(SOON))
    consumer.close()
    arguments = ["seek", topic, SUBSCRIPTION, "--to", "earliest", "--yes"]

    killed(where, count, *arguments)
    assert 0 == run(*arguments)[0]

    again = subscribe()
    assert firsts(*gone, *there) == delivered(again)
    for each in (f"{topic}-partition-0", f"{topic}-partition-1", subscription.retry_letter_topic):
        drained(admin, each)


def test_a_killed_restore(run, admin, topic, subscription, consumer, publish, subscribe):
    """A restore that is killed between its moves is run again, and loses nothing."""
    for n in range(4):
        publish(f"{n}".encode())
    consumer.reconsume_later(consumer.receive(SOON))
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 3)
    snapshot = Snapshot.create(subscription)
    seek(subscription, "latest")
    consumer.close()
    arguments = ["snapshot", "restore", topic, SUBSCRIPTION, snapshot.name, "--yes"]

    killed("_publish", 1, *arguments)
    assert 0 == run(*arguments)[0]

    assert firsts(*"0123") == delivered(subscribe())
    drained(admin, subscription.retry_letter_topic)

"""Redrives whose process or broker dies, or whose network stalls, in the middle."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.replay import Cluster, Redrive, Redriven
from pulsar_retry.replay.redriving import run as redrive_run
from pulsar_retry.replay.redriving.targets import DISCARD
from support.reading import SOON
from support.replay.redriving import Dead, at_letter
from support.waiting import eventually

#: A busy machine takes long to start a broker.
pytestmark = pytest.mark.timeout(600)

LETTERS = 10_000


def collect(consumer, count: int) -> tuple[Counter[int], set[str]]:
    """Receive *count* numbers and all that comes then: how often each came, and the ids."""
    numbers: Counter[int] = Counter()
    ids = set()
    while True:
        try:
            message = consumer.receive(SOON if len(numbers) < count else 2_000)
        except pulsar.Timeout:
            return numbers, ids
        consumer.acknowledge(message)
        numbers[int(message.data())] += 1
        ids.add((int(message.data()), message.properties()["DEDUPE_ID"]))


def test_ten_thousand_letters_and_two_kills(dead) -> None:
    """Every letter is back; what is back twice has one id, so it can be told."""
    consumer = dead.subscribe()
    dead.fill(LETTERS)
    for so_far in (1_000, 4_000):
        process = dead.program(dies_after=so_far)
        process.communicate()
        assert -9 == process.returncode

    process = dead.program()
    output, _ = process.communicate(timeout=240)

    assert 0 == process.returncode
    done, count = output.splitlines()[-1].split()
    assert "done" == done
    numbers, ids = collect(consumer, LETTERS)
    assert set(range(LETTERS)) == set(numbers)
    assert LETTERS == len(ids)
    assert 0 < int(count) < LETTERS
    # At most what was under way at each kill, and what was acknowledged in its last moment.
    assert numbers.total() - LETTERS < LETTERS / 2
    eventually(lambda: dead.backlog() == 0)


def test_a_broker_that_restarts(own_broker, admin, topic, monkeypatch) -> None:
    """The redrive waits for it and goes on; nothing is lost, nothing goes twice without need."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(own_broker.service_url, operation_timeout_seconds=90, logger=quiet) as client:
        name = f"persistent://public/default/{topic.rsplit('/', 1)[1]}"
        dead = Dead(own_broker, admin, client, name)
        consumer = dead.subscribe()
        dead.fill(2_000)

        def restart() -> None:
            own_broker.kill()
            own_broker.restart()

        restarting = threading.Thread(target=restart)

        at_letter(monkeypatch, 300, restarting.start)
        done = Redrive(dead.dlq, cluster=dead.cluster, rate=1_000).run()

        restarting.join()
        assert (2_000, None) == (done.redriven, done.stopped)
        eventually(lambda: dead.backlog() == 0)
        numbers, ids = collect(consumer, 2_000)
        assert (2_000, 2_000) == (len(numbers), len(ids))


@pytest.mark.parametrize(
    ("to", "partitions"), [("retry", 0), ("retry", 2), ("origin", 0), (DISCARD, 0), (DISCARD, 2)]
)
def test_a_slow_redrive_through_an_outage(own_broker, admin, topic, to, partitions) -> None:
    """Its end is the end: all is acknowledged, and the rate holds when the broker is back."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    rate, count = 20, 100
    with pr.Client(own_broker.service_url, operation_timeout_seconds=90, logger=quiet) as client:
        name = f"persistent://public/default/{topic.rsplit('/', 1)[1]}"
        dead = Dead(own_broker, admin, client, name)
        consumer = dead.subscribe()
        dead.create("keep", partitions=partitions)
        dead.fill(count)
        seen: list[tuple[float, int]] = []
        dying = threading.Thread(target=lambda: (own_broker.kill(), own_broker.restart()))

        def progress(so_far: Redriven) -> None:
            seen.append((time.monotonic(), so_far.redriven))
            if so_far.redriven > 20 and not dying.ident:
                dying.start()

        done = Redrive(dead.dlq, to, cluster=dead.cluster, rate=rate).run(progress)

        assert 0 == dead.backlog()
        assert (count, {}, None) == (done.redriven, done.left, done.stopped)
        for (before, low), (after, high) in itertools.pairwise(seen):
            assert high - low <= rate * (after - before + 2)
        dying.join()
        if to != DISCARD:
            numbers, ids = collect(consumer, count)
            assert (count, count) == (len(numbers), len(ids))


@pytest.mark.parametrize("to", ["retry", DISCARD])
def test_a_slow_redrive_of_retries_through_an_outage(
    own_broker, admin, topic, to, monkeypatch
) -> None:
    """It waits for the broker, too, and goes on, also if a letter does not come in its time."""
    monkeypatch.setattr("pulsar_retry.replay.reading._PATIENCE", 1.0)
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    count = 100
    with pr.Client(own_broker.service_url, operation_timeout_seconds=90, logger=quiet) as client:
        name = f"persistent://public/default/{topic.rsplit('/', 1)[1]}"
        dead = Dead(own_broker, admin, client, name)
        consumer = dead.subscribe()
        dead.fill_retry(count, delay=3_600)

        def die() -> None:
            own_broker.kill()
            time.sleep(8)
            own_broker.restart()

        dying = threading.Thread(target=die)

        def progress(so_far: Redriven) -> None:
            if so_far.redriven > 20 and not dying.ident:
                dying.start()

        done = Redrive(dead.retry, to, cluster=dead.cluster, rate=20).run(progress)

        dying.join()
        assert (count, {}, None) == (done.redriven, done.left, done.stopped)
        numbers, ids = collect(consumer, 0 if to == DISCARD else count)
        assert (0 if to == DISCARD else count) == len(numbers) == len(ids)
        again = Redrive(dead.retry, DISCARD, cluster=dead.cluster).run()
        assert (0, True) == (again.redriven, again.is_complete)


def stalled(dead, proxy, monkeypatch, is_over):
    """Redrive all letters; after some of them, the network stalls until *is_over* says so."""
    is_stalled = threading.Event()

    def stall() -> None:
        proxy.stall(to_server=False)
        is_stalled.set()

    def look_and_mend(run, silence: float) -> None:
        look(run, silence)
        if is_stalled.is_set() and is_over(run, silence):
            proxy.mend()

    look = redrive_run.Run._close_partitions
    monkeypatch.setattr(redrive_run.Run, "_close_partitions", look_and_mend)
    at_letter(monkeypatch, 200, stall)
    cluster = Cluster(proxy.url, admin_url=dead.broker.admin_url)
    return Redrive(dead.dlq, cluster=cluster, rate=1_000).run()


@pytest.mark.parametrize("count", [1_500, 4_000], ids=["all are sent", "as many as it may hold"])
def test_letters_that_are_on_their_way(dead, proxy, count, monkeypatch) -> None:
    """The redrive waits for letters that the broker has sent and that have not come yet."""
    monkeypatch.setattr(redrive_run, "_ON_ITS_WAY", 60.0)  # also if the machine is busy
    consumer = dead.subscribe()
    dead.fill(count)

    done = stalled(dead, proxy, monkeypatch, lambda _, silence: silence > 2)

    assert (count, {}, None) == (done.redriven, done.left, done.stopped)
    numbers, _ = collect(consumer, count)
    assert (count, count) == (len(numbers), numbers.total())


def test_letters_that_come_too_late(dead, proxy, monkeypatch) -> None:
    """They are counted, and the redrive says that it is not complete."""
    monkeypatch.setattr(redrive_run, "_ON_ITS_WAY", 0.5)
    dead.subscribe()
    dead.fill(1_500)

    done = stalled(dead, proxy, monkeypatch, lambda run, _: not run._open_partitions)

    late = done.left["late"]
    assert 0 < late == 1_500 - done.redriven
    assert not done.is_complete
    assert "in time" in done.problems[0]
    eventually(lambda: dead.backlog() == late)

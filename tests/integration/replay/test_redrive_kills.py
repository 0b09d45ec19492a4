"""Redrives whose process or broker dies, or whose network stalls, in the middle."""

from __future__ import annotations

import threading
from collections import Counter

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.replay import Cluster, Redrive
from pulsar_retry.replay.redriving import delivery
from support.reading import eventually
from support.replay.redriving import Dead

LETTERS = 10_000


def come_so_far(process, count: int) -> None:
    """Wait until a redrive has brought back more than *count* letters."""
    for line in process.stdout:
        if line.startswith("done"):
            pytest.fail("it was over before it was killed")
        if int(line) > count:
            return


def collect(consumer) -> tuple[Counter[int], set[str]]:
    """Receive all there is: how often each number, and the ids that came."""
    numbers: Counter[int] = Counter()
    ids = set()
    while True:
        try:
            message = consumer.receive(2_000)
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
        process = dead.program()
        come_so_far(process, so_far)
        process.kill()
        process.communicate()

    process = dead.program()
    output, _ = process.communicate(timeout=120)

    assert 0 == process.returncode
    done, count, resumed, at_least = output.splitlines()[-1].split()
    assert ("done", "True", "True") == (done, resumed, at_least)
    numbers, ids = collect(consumer)
    assert set(range(LETTERS)) == set(numbers)
    assert LETTERS == len(ids)
    assert int(count) <= numbers.total()
    # At most what was under way at each kill, and what was acknowledged in its last moment.
    assert numbers.total() - LETTERS < LETTERS / 2
    assert 0 == dead.backlog()


def test_a_broker_that_restarts(own_broker, admin, topic) -> None:
    """The redrive waits for it and goes on; nothing is lost, nothing goes twice without need."""
    with pr.Client(
        own_broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    ) as client:
        name = f"persistent://public/default/{topic.rsplit('/', 1)[1]}"
        dead = Dead(own_broker, admin, client, name)
        consumer = dead.subscribe()
        dead.fill(2_000)

        def restart() -> None:
            own_broker.kill()
            own_broker.restart()

        restarting = threading.Thread(target=restart)

        def begin(so_far) -> None:
            if so_far.redriven > 300 and restarting.ident is None:
                restarting.start()

        done = Redrive(dead.dlq, cluster=dead.cluster, rate=1_000).run(begin)

        restarting.join()
        assert (2_000, None) == (done.redriven, done.stopped)
        eventually(lambda: dead.backlog() == 0)
        numbers, ids = collect(consumer)
        assert (2_000, 2_000) == (len(numbers), len(ids))


def stalled(dead, proxy):
    """Redrive all letters; after some of them, the network stalls for four seconds."""
    mending = threading.Timer(4, proxy.mend)

    def stall(so_far) -> None:
        if so_far.redriven > 200 and mending.ident is None:
            proxy.stall(to_server=False)
            mending.start()

    cluster = Cluster(proxy.url, admin_url=dead.broker.admin_url)
    done = Redrive(dead.dlq, cluster=cluster, rate=1_000).run(stall)
    mending.join()
    return done


@pytest.mark.parametrize("count", [1_500, 4_000], ids=["all are sent", "as many as it may hold"])
def test_letters_that_are_on_their_way(dead, proxy, count) -> None:
    """The redrive waits for letters that the broker has sent and that have not come yet."""
    consumer = dead.subscribe()
    dead.fill(count)

    done = stalled(dead, proxy)

    assert (count, {}, None) == (done.redriven, done.left, done.stopped)
    numbers, _ = collect(consumer)
    assert (count, count) == (len(numbers), numbers.total())


def test_letters_that_come_too_late(dead, proxy, monkeypatch) -> None:
    """They are counted, and the redrive says that it is not complete."""
    monkeypatch.setattr(delivery, "_ON_ITS_WAY", 0.5)
    dead.subscribe()
    dead.fill(1_500)

    done = stalled(dead, proxy)

    late = done.left["late"]
    assert 0 < late == 1_500 - done.redriven
    assert not done.is_complete
    assert "in time" in done.problems[0]
    eventually(lambda: dead.backlog() == late)

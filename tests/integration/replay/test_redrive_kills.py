"""Redrives whose process, or whose broker, dies in the middle: nothing is lost."""

from __future__ import annotations

import threading
from collections import Counter

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.replay import Redrive
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

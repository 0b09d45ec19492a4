"""A deployment under load: one worker after the other is replaced."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pulsar_retry.standalone.ports import free_ports
from support.faults.ledger import Ledger, payload
from support.pull.rolling import Worker
from support.waiting import eventually

#: How often every worker is replaced.
ROUNDS = 2


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    """Give the ledger of all processes."""
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def workers(broker, topic, ledger) -> Iterator[list[Worker]]:
    """Give two workers that are ready."""
    workers = [new(broker, topic, ledger) for _ in range(2)]
    yield workers
    for worker in workers:
        worker.process.kill()
        worker.process.wait()


def new(broker, topic, ledger) -> Worker:
    """Return a worker that is ready, as a rolling update waits for it."""
    worker = Worker(broker.service_url, topic, ledger.path, next(free_ports()))
    eventually(lambda: worker.is_ready() or worker.process.poll() is not None)
    assert worker.is_ready()
    return worker


def test_a_rolling_restart_loses_nothing(broker, client, topic, ledger, workers):
    """Each worker drains and ends with 0 while messages arrive; all of them are processed."""
    ended = threading.Event()
    producer = client.create_producer(topic, block_if_queue_full=True)

    def load() -> None:
        number = 0
        while not ended.wait(0.005):
            producer.send(payload(number))
            ledger.enter("sent", number)
            number += 1

    loading = threading.Thread(target=load)
    loading.start()
    codes = []
    try:
        for _ in range(ROUNDS):
            for at, old in enumerate(list(workers)):
                seen = ledger.account().processed
                workers[at] = new(broker, topic, ledger)
                codes.append(old.end())
                # The load goes on, and somebody handles it.
                eventually(lambda seen=seen: ledger.account().processed > seen + 20)
    finally:
        ended.set()
        loading.join()
    eventually(lambda: not ledger.open())
    account = ledger.account()
    assert [0] * 2 * ROUNDS == codes
    assert account.sent > 100
    assert account.retried > 0
    assert not account.lost, account
    assert not account.strange
    assert [0, 0] == [worker.end() for worker in workers]

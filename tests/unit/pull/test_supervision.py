"""Workers that hang or die: others take their places, or the subscription ends and says so."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.letters.facts import facts_of
from pulsar_retry.observe.counting import COUNTERS
from pulsar_retry.pull.engine.hand import Slot
from pulsar_retry.pull.engine.settler import Settler
from pulsar_retry.pull.workers import processes as process_workers
from pulsar_retry.pull.workers.processes import ProcessWorker
from pulsar_retry.testing import MemoryBroker
from pulsar_retry.wire.owner import Recipient
from support.pull import workers
from support.pull.handling import SOON, Notes
from support.waiting import eventually

SHORT = pr.Lease(max_total=1)
DAY = 86_400
AT_ONCE = pr.RetryPolicy(max_attempts=20, backoff="immediate", retry_on=ConnectionError)


def hanging(memory: MemoryBroker) -> Notes:
    """Return a handler that hangs for ever with some messages."""

    def act(message: Any) -> None:
        if message.data().startswith(b"hang"):
            memory.clock.event().wait(1000 * DAY)

    return Notes(act)


def gauges(topic: str = "orders") -> dict[str, float]:
    """Return what the metrics say of the subscription."""
    found: dict[str, float] = {}
    for each in COUNTERS.of(topic, "billing").gauges():
        found.update(each)
    return found


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_message_that_always_hangs(memory: MemoryBroker, concurrency: int) -> None:
    """It costs a thread at each attempt, and is dead in the end, whatever `retry_on` names.

    All others are handled.
    """
    notes = hanging(memory)
    subscriber = memory.client().subscriber(
        "orders", "billing", notes, lease=SHORT, retry_policy=AT_ONCE, concurrency=concurrency
    )
    assert "new" == subscriber.health.state
    with subscriber:
        assert pr.Health("running") == subscriber.health
        memory.send("orders", b"hang")
        for number in range(5):
            memory.send("orders", b"%d" % number)
        memory.join("orders", "billing")
        health = subscriber.health
        assert ("degraded", False) == (health.state, health.is_well)
        assert "20 handlers have not returned after their lease" in health.reason
        assert (20, 1) == (gauges()["abandoned_handlers"], gauges()["degraded"])
        memory.send("orders", b"one more")
        memory.join("orders", "billing")
    assert (20, 6) == (notes.attempts[b"hang"], len(notes.seen) - 20)
    report = subscriber.result(SOON)
    assert (6, 1, 20) == (report.acknowledged, report.dead_lettered, report.expired)
    (dead,) = memory.dead_letters("orders", "billing")
    failure = pr.DeadLetter.of(dead).failure
    assert ("LeaseExpired", "retries-exhausted") == (failure.error, failure.reason)
    assert "stopped" == subscriber.health.state


def test_too_many_that_hang(memory: MemoryBroker) -> None:
    """They end the subscription, and `result` says why; nothing is lost."""
    lease = pr.Lease(max_total=1, max_abandoned=3)
    subscriber = memory.client().subscriber(
        "orders", "billing", hanging(memory), lease=lease, retry_policy=AT_ONCE, concurrency=2
    )
    memory.send("orders", b"hang")
    subscriber.start()
    with pytest.raises(pr.WorkersLostError, match="more than 3 handlers have not returned"):
        subscriber.result(DAY)
    assert "failed" == subscriber.health.state
    assert "WorkersLostError" in subscriber.health.reason
    counts = COUNTERS.of("orders", "billing").counts("subscriptions_failed")
    assert counts["WorkersLostError"] >= 1
    with memory.client().subscriber("orders", "billing", Notes()) as successor:
        memory.join("orders", "billing")
    assert 1 == successor.result().acknowledged


def test_one_that_comes_back_late(memory: MemoryBroker) -> None:
    """Its worker ends then, so that there are never more of them at work than there are to be."""
    release, most, at_work = memory.clock.event(), [0], []
    lock = threading.Lock()

    def handle(message: Any) -> None:
        if message.data() == b"hang" and pr.attempt_of(message) == 1:
            release.wait(DAY)
            return
        with lock:
            at_work.append(message)
            most[0] = max(most[0], len(at_work))
        memory.clock.sleep(0.5)
        with lock:
            at_work.pop()

    client = memory.client()
    with client.subscriber("orders", "billing", handle, lease=SHORT, concurrency=1) as subscriber:
        memory.send("orders", b"hang")
        memory.clock.advance(70)
        release.set()
        memory.clock.settle()
        assert "running" == subscriber.health.state
        for number in range(10):
            memory.send("orders", b"%d" % number)
        memory.join("orders", "billing")
    assert (1, 11) == (most[0], subscriber.result().acknowledged)


def test_a_worker_that_dies(memory: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an error of ours, say: the subscription ends, and its message comes back."""

    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Settler, "failed", broken)
    memory.send("orders", b"order")
    handler = workers.raising(ValueError())
    subscriber = memory.client().subscriber("orders", "billing", handler, concurrency=1).start()
    with pytest.raises(pr.WorkersLostError, match=r"a worker has ended .*a bug"):
        subscriber.result(DAY)
    assert 1 == memory.backlog("orders", "billing")


def test_an_event_loop_that_dies(memory: MemoryBroker) -> None:
    """By what a task of the handler's own raises, say: the subscription ends."""

    async def leave() -> None:
        raise SystemExit(3)

    async def handle(_message: Any) -> None:
        await asyncio.wait([asyncio.ensure_future(leave())])

    memory.send("orders", b"order")
    subscriber = memory.client().subscriber("orders", "billing", handle).start()
    eventually(lambda: subscriber._settler.fatal is not None)
    with pytest.raises(pr.WorkersLostError, match="the event loop of the handlers has ended"):
        subscriber.result(DAY)
    assert 1 == memory.backlog("orders", "billing")


# -- worker processes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handler", "kind", "text"),
    [
        (workers.Unloadable("import"), ImportError, "no_such_module"),
        (workers.Unloadable("exit"), SystemExit, "not here"),
    ],
)
def test_a_handler_that_cannot_be_imported(
    memory: MemoryBroker, handler: Any, kind: type[BaseException], text: str
) -> None:
    """It ends the subscription with the child's own error; no attempt is used up."""
    memory.send("orders", b"order")
    subscriber = memory.client().subscriber(
        "orders", "billing", handler, workers="processes", concurrency=1
    )
    subscriber.start()
    with pytest.raises(kind, match=text) as raised:
        subscriber.result(DAY)
    assert "A worker process could not import the handler." == raised.value.__notes__[-1]
    assert (1, []) == (
        memory.backlog("orders", "billing"),
        memory.retry_letters("orders", "billing"),
    )


def test_processes_that_die_as_they_start(memory: MemoryBroker) -> None:
    """They end the subscription, and use up no attempt."""
    memory.send("orders", b"order")
    subscriber = memory.client().subscriber(
        "orders", "billing", workers.Unloadable("die"), workers="processes", concurrency=1
    )
    subscriber.start()
    with pytest.raises(pr.WorkerCrashedError, match=r"could be started: .*exit code 9"):
        subscriber.result(DAY)


def message_of() -> Any:
    """Return a message."""
    memory = MemoryBroker()
    memory.send("orders", b"order")
    return memory.messages("orders")[0]


facts = partial(facts_of, recipient=Recipient.of(["orders"], "billing", None))


def end_by_the_system(worker: ProcessWorker) -> None:
    """Kill a child behind its parent's back."""
    worker._process.kill()
    worker._process.join()


@pytest.mark.parametrize("end", [ProcessWorker.kill, end_by_the_system])
def test_a_child_that_dies_between_messages(end: Callable[[ProcessWorker], None]) -> None:
    """By a kill that comes too late, say: a new one comes, and no attempt is used up."""
    worker = ProcessWorker(workers.drop, pulsar.schema.BytesSchema(), facts)
    message = message_of()
    try:
        assert isinstance(worker(message), pr.Drop)
        end(worker)
        assert isinstance(worker(message), pr.Drop)
    finally:
        worker.close()


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no such masks on this system")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_for_a_child_that_starts(number: signal.Signals) -> None:
    """It comes to the whole group of processes, and only the parent decides what it means."""
    before = set(process_workers._children)
    worker = ProcessWorker(workers.drop, pulsar.schema.BytesSchema(), facts)
    with ThreadPoolExecutor(1) as pool:
        handling = pool.submit(worker, message_of())
        eventually(lambda: set(process_workers._children) - before)
        (child,) = set(process_workers._children) - before
        while not handling.done():
            os.kill(child.pid, number)
            time.sleep(0.01)
        try:
            assert isinstance(handling.result(), pr.Drop)
        finally:
            worker.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_that_dies_is_missed_at_once(tmp_path: Path) -> None:
    """Although a process that its handler has forked lives on."""
    forked = tmp_path / "forked"
    worker = ProcessWorker(workers.fork_and_die, pulsar.schema.BytesSchema(), facts)
    memory = MemoryBroker()
    memory.send("orders", str(forked).encode())
    try:
        with pytest.raises(pr.WorkerCrashedError, match="exit code 9"):
            worker(memory.messages("orders")[0])
    finally:
        os.kill(int(forked.read_text()), signal.SIGKILL)


def test_only_the_expired_message_is_interrupted() -> None:
    """A worker cannot get to the next message while the handler of the last one is ended."""
    slot: Any = Slot()
    item = object()
    slot.work = item
    settled, at_the_next = threading.Event(), []

    def settle() -> None:
        at_the_next.append(slot.may_settle(item))
        settled.set()

    def interrupt() -> None:
        threading.Thread(target=settle).start()
        assert slot.lock.locked()

    slot.interrupt = interrupt
    assert slot.expire(item)
    assert settled.wait(SOON)
    assert [False] == at_the_next
    assert not slot.expire(item)

"""A service that every message needs is away for more than a minute; all settings are defaults.

Each worker is the program of `support.faults.away`. What is asserted is what a user sees: how many
messages were dead-lettered or lost, the probes, and the log.
"""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest

from support.faults.away import FORMS, Sending, Workers, dead_in
from support.waiting import eventually

KINDS = ("Shared", "KeyShared", "Failover")

#: Seconds: before the outage, how long it is, and in which everything is well after it.
BEFORE, AWAY, AFTER = 8.0, 75.0, 60.0

#: With a message every five seconds, sixteen successes take more than that.
AFTER_FEW = 150.0

#: Messages that a worker may dead-letter in an outage.
MOST_DEAD = 10


@attrs.frozen
class Result:
    """What an outage has cost.

    Attributes:
        degraded: Seconds after its begin until each worker's health said so.
        running: Seconds after its end until each worker's health said so.
        handled: Seconds after its end until all messages were handled or dead.
    """

    name: str
    workers: int
    sent: int
    dead: int
    lost: int
    degraded: float
    running: float
    handled: float
    opened: int
    still: int
    closed: int
    unready: float
    always_live: bool


@pytest.fixture
def outage(broker, client, admin, namespace, tmp_path):
    """Return a function that runs one outage."""

    def outage(kind: str, form: str, load: str, policy: str) -> Result:
        name = f"{kind}-{form}-{load}"
        topic, folder = f"persistent://{namespace}/{uuid.uuid4().hex}", tmp_path / name
        folder.mkdir()
        workers = Workers(broker.service_url, topic, folder, kind, form, policy)
        sending = Sending(client, topic, keys=200 if load == "ten workers" else 20)
        try:
            return passed(name, workers, sending, load)
        finally:
            sending.end()
            workers.kill()

    def passed(name: str, workers: Workers, sending: Sending, load: str) -> Result:
        is_backlog = load == "backlog"
        if is_backlog:
            for number in range(1000):
                sending.send(f"order-{number}")
            workers.goes_away()
        for count in (5, 5) if load == "ten workers" else (1,):
            workers.start(count)
        total = 10 if load == "ten workers" else 1
        eventually(lambda: len(workers.ports) == total)
        if not is_backlog:
            eventually(lambda: workers.are("running"))
            sending.begin(30 if load == "ten workers" else float(load))
            time.sleep(BEFORE)
            workers.goes_away()
        began = time.monotonic()
        degraded = workers.until(lambda: workers.are("degraded"), AWAY - 10)
        workers.until(lambda: workers.look() == [], began + AWAY - time.monotonic())
        unready = [ready for _, _, _, ready, _ in workers.seen[-total * 20 :]]
        workers.comes_back()
        back = time.monotonic()
        patience = AFTER_FEW if load == "0.2" else AFTER
        running = workers.until(lambda: workers.are("running"), patience)
        sending.end()
        ended = lambda: workers.handled() | set(dead_in(client, workers.topic, admin))  # noqa: E731 - one line
        workers.until(lambda: ended() >= set(sending.sent), 120)
        handled = time.monotonic() - back
        dead = dead_in(client, workers.topic, admin)
        workers.look()
        assert all(state == "running" for *_, state, _, _ in workers.seen[-total:])
        opened, still, closed = workers.logged("has opened", "has been open", "has closed")
        workers.stop()
        return Result(
            name,
            total,
            len(sending.sent),
            len(dead),
            len(set(sending.sent) - workers.handled() - set(dead)),
            degraded,
            running,
            handled,
            opened,
            still,
            closed,
            sum(code == 503 for code in unready) / len(unready),
            all(live == 200 for *_, live in workers.seen),
        )

    return outage


def checked(result: Result, load: str) -> None:
    """Assert what is promised."""
    if load in {"0.2", "ten workers"} or "Failover" in result.name:
        assert result.dead <= MOST_DEAD * result.workers
    else:
        assert result.dead == 0
    assert result.lost == 0
    assert result.always_live
    assert result.running < float("inf")
    if load != "0.2":
        assert result.handled <= AFTER + 5
        if result.workers == 1 or "Failover" not in result.name:  # one of them has all messages
            assert result.degraded < 30
            assert result.unready == 1.0
        if "Failover" not in result.name:  # there one message is tried after the other anyway
            assert min(result.opened, result.still, result.closed) >= 1


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", ["quickstart", "hasty"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("load", ["0.2", "3", "30", "backlog", "ten workers"])
def test_a_service_is_away(outage, load, form, policy):
    """For each type of subscription at a time: nothing is lost, and little is dead."""
    if load == "ten workers" and form == "processes":
        pytest.skip("skipped, because thirty processes for each type are too many for a machine")
    with ThreadPoolExecutor(len(KINDS)) as pool:
        results = list(pool.map(lambda kind: outage(kind, form, load, policy), KINDS))
    for result in results:
        print(policy, result)
    for result in results:
        checked(result, load)


@pytest.fixture
def workers(broker, topic, tmp_path):
    """Return workers of a Shared subscription that nobody has started."""
    workers = Workers(broker.service_url, topic, tmp_path, "Shared", "threads", "hasty")
    yield workers
    workers.kill()


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_stops_in_an_outage(workers, client, admin, topic, kind):
    """Within a few seconds, and what it had is there for the next one."""
    workers.kind = kind
    sending = Sending(client, topic)
    workers.goes_away()
    workers.start()
    sending.begin(30)
    eventually(lambda: bool(workers.ports))
    eventually(lambda: workers.are("degraded"))
    dead = set(dead_in(client, topic, admin))
    ((seconds, report),) = workers.stop()
    sending.end()
    assert seconds < 10, report
    assert dead == set(dead_in(client, topic, admin))
    (workers.folder / "ports").unlink()
    workers.comes_back()
    workers.start()
    eventually(lambda: workers.handled() | dead == set(sending.sent))

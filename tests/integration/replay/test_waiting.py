"""Letters that wait for their delay are cancelled, or made due now."""

from __future__ import annotations

import threading

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.replay import Cluster, Filter
from pulsar_retry.replay.waiting.waiting import WaitingLetters
from support.reading import SUBSCRIPTION, eventually
from support.replay.redriving import Dead
from support.replay.waiting import fill_retry, note, numbers

#: Some brokers are killed, and a busy machine takes long to start them.
pytestmark = pytest.mark.timeout(600)

EVERY_SECOND = Filter(reason="odd")


@pytest.fixture
def own_dead(own_broker, topic):
    """Give the topics of a subscription on a broker that may be killed."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(own_broker.service_url, operation_timeout_seconds=90, logger=quiet) as client:
        name = f"persistent://public/default/{topic.rsplit('/', 1)[1]}"
        yield Dead(own_broker, None, client, name)


def waiting(dead: Dead, **options) -> WaitingLetters:
    """Return the letters of the test's retry topic."""
    return WaitingLetters(dead.cluster, dead.retry, **options)


def test_five_thousand_of_ten_thousand_are_never_delivered(own_dead) -> None:
    """Every second one is cancelled: none arrives, also after the broker was killed."""
    dead = own_dead
    consumer = dead.subscribe()
    fill_retry(dead, 10_000, delay=45)

    done = waiting(dead, where=EVERY_SECOND).cancel(note())

    assert (5_000, 5_000, 0, True) == (done.count, done.left, done.handled, done.unloaded)
    dead.broker.kill()
    dead.broker.restart()
    found = numbers(consumer, 5_000)
    assert not [each for each in found if each % 2]
    assert set(range(0, 10_000, 2)) == set(found)


def test_letters_that_a_running_consumer_has_fetched(dead) -> None:
    """They are due, and in its queue: it drops them, and none is handled."""
    consumer = dead.subscribe()
    fill_retry(dead, 400, delay=0)
    first = consumer.receive(60_000)  # so the queue is full, and one message is held
    assert b"0" == first.data()

    done = waiting(dead, where=EVERY_SECOND).cancel(note())

    assert (200, 200, True, ()) == (done.count, done.due, done.unloaded, done.warnings)
    found = numbers(consumer, 199)
    assert not [each for each in found if each % 2]
    assert set(range(0, 400, 2)) == {*found, 0}


def test_a_running_subscriber_that_has_fetched(dead, client) -> None:
    """A subscriber handles no cancelled letter, except one that it had in hand."""
    dead.subscribe().close()
    fill_retry(dead, 300, delay=0)
    handled: list[int] = []
    begun, goes_on = threading.Event(), threading.Event()

    def handle(message: pulsar.Message) -> None:
        handled.append(int(message.data()))
        begun.set()
        goes_on.wait(120)

    subscriber = client.subscriber(dead.topic, SUBSCRIPTION, handle, concurrency=1)
    subscriber.start()
    assert begun.wait(120)
    before = set(handled)
    done = waiting(dead, where=EVERY_SECOND).cancel(note())
    assert 150 >= done.count >= 149
    goes_on.set()
    eventually(lambda: set(range(0, 300, 2)) <= set(handled))
    subscriber.stop()
    # On a busy machine, the connection may be back before the subscriber notices that it was lost.
    # Then it keeps the one letter that waits for its only worker.
    assert {each for each in handled if each % 2} <= before | {1}


@pytest.mark.nightly
def test_more_gaps_than_a_broker_stores(own_dead) -> None:
    """The other letters are published again, so that a restart brings nothing back."""
    dead = own_dead
    consumer = dead.subscribe()
    fill_retry(dead, 24_000, delay=60)

    done = waiting(dead, where=EVERY_SECOND).cancel(note())

    assert 12_000 == done.count
    assert 11_900 < done.moved < 12_000
    dead.broker.kill()
    dead.broker.restart()
    found = numbers(consumer, 12_000, 120_000)
    assert not [each for each in found if each % 2]
    assert set(range(0, 24_000, 2)) == set(found)


def test_a_letter_is_due_now(dead) -> None:
    """It arrives at once, as the same attempt; the others wait."""
    consumer = dead.subscribe()
    fill_retry(dead, 6, delay=3_600)

    done = waiting(dead, where=EVERY_SECOND).expedite("job")

    assert (3, 3) == (done.count, done.left)
    found = []
    for _ in range(3):
        message = consumer.receive(60_000)
        found.append(int(message.data()))
        assert "1" == message.properties()["RECONSUMETIMES"]
        assert "0" == message.properties()["DELAY_TIME"]
        consumer.acknowledge(message)
    assert [1, 3, 5] == sorted(found)
    eventually(lambda: 3 == waiting(dead).look().count)
    assert 3 == waiting(dead).look(expedites=True).count


def test_a_look_changes_nothing(dead) -> None:
    """It counts letters by reason, and by when they are due."""
    dead.subscribe()
    fill_retry(dead, 6, delay=3_600)

    seen = waiting(dead, limit=4).look()

    assert (4, 2, 0, True) == (seen.count, seen.left, seen.due, seen.dry_run)
    assert {("odd", 2), ("even", 2)} == {(each.reason, each.count) for each in seen.groups}
    assert 6 == waiting(dead).look().count


def test_letters_that_are_on_their_way(dead, proxy) -> None:
    """They are waited for if the network stalls, and do not count as unreadable."""
    dead.subscribe()
    fill_retry(dead, 1_400, delay=3_600)
    mending = threading.Timer(6, proxy.mend)

    def stall(read: int, _total: int) -> None:
        if read == 1_000:
            proxy.stall(to_server=False)
            mending.start()

    cluster = Cluster(proxy.url, admin_url=dead.broker.admin_url)
    report = WaitingLetters(cluster, dead.retry).look(tell=stall)

    assert (1_400, 0) == (report.count, report.unreadable)
    mending.join()

"""A network that stalls, or is cut, while letters are read."""

from __future__ import annotations

import threading

import pulsar
import pytest

from pulsar_retry.replay import Cluster, Subscription, seek
from pulsar_retry.replay.seeking import mover
from pulsar_retry.runtime.upstream import has_message
from support.reading import SUBSCRIPTION


def test_letters_that_come_late_are_published_again(dead, admin, proxy, monkeypatch) -> None:
    """No letter is acknowledged before its copy is stored."""
    dead.subscribe()
    dead.fill_retry(700, delay=3_600)
    mending = threading.Timer(6, proxy.mend)
    anew, count = mover.anew, 0

    def stalling(*arguments):
        nonlocal count
        count += 1
        if count == 1:
            proxy.stall(to_server=False)
            mending.start()
        return anew(*arguments)

    monkeypatch.setattr(mover, "anew", stalling)
    cluster = Cluster(proxy.url, admin_url=dead.broker.admin_url)
    report = seek(Subscription(cluster, dead.topic, SUBSCRIPTION), "earliest", grace=0)

    mending.join()
    assert 700 == report.letters.reset
    assert 700 == admin.backlog(dead.retry, SUBSCRIPTION)


def test_a_cut_is_no_end(client, proxy, topic) -> None:
    """pulsar-client says that there is nothing to read if it is cut off while it asks."""
    client.create_producer(topic).send(b"")
    through = pulsar.Client(proxy.url)
    latest = pulsar.MessageId.latest
    reader = through.create_reader(topic, latest, start_message_id_inclusive=True)
    proxy.stall()
    threading.Timer(0.5, proxy.cut).start()

    with pytest.raises(pulsar.NotConnected):
        has_message(reader)

    proxy.mend()
    through.close()

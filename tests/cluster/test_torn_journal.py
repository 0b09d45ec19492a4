"""A bookie that is killed while it writes starts again."""

from __future__ import annotations

import os

import pulsar
import pytest

import pulsar_retry as pr
from support.brokers.clusters import RunningCluster
from support.brokers.journals import tear, torn_padding

pytestmark = pytest.mark.broker

TIMEOUT_MS = 90_000


def test_a_bookie_is_killed_in_the_middle_of_a_write(
    cluster: RunningCluster, client: pr.Client, topic: str
) -> None:
    """The incomplete write is removed, and all messages are still stored."""
    sent = [os.urandom(50_000) for _ in range(10)]
    producer = client.create_producer(topic, send_timeout_millis=TIMEOUT_MS)
    for content in sent:
        producer.send(content)
    bookie = cluster.it.bookies[0]
    bookie.kill()
    file, end = tear(bookie.log_path.parents[1] / "data" / "journal", torn_padding)
    bookie.start()
    assert file.stat().st_size == end
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(TIMEOUT_MS).data() for _ in sent] == sent

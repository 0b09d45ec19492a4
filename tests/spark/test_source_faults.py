"""Brokers that restart or die while a stream reads."""

from __future__ import annotations

import uuid

import pulsar
import pytest
from reading import eventually
from sourcing import Letters, Query

import pulsar_retry as pr

#: Seconds for a broker to come back and for Spark to notice.
PATIENCE = 240


@pytest.fixture
def client(own_broker):
    """Give a client of the broker that is to fall."""
    with pr.Client(
        own_broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    ) as client:
        yield client


@pytest.fixture
def letters(own_broker, client):
    """Give the topics of the test's subscription."""
    topic = f"persistent://public/default/{uuid.uuid4().hex}"
    return Letters(own_broker.service_url, topic, client)


@pytest.fixture
def query(spark, letters, tmp_path):
    """Give a query of both topics; what runs at the end of the test is stopped."""
    query = Query(spark, letters.options, str(tmp_path / "checkpoint"))
    yield query
    query.stop()


def numbers(*args):
    """Return payloads that are numbers."""
    return [str(number).encode() for number in range(*args)]


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_a_stream_outlives_its_broker(own_broker, letters, query, end):
    """It goes on by itself, and each message is read once, before and after."""
    letters.send(*numbers(3))
    query.start()
    eventually(lambda: query.read() == numbers(3), PATIENCE)

    getattr(own_broker, end)()
    if end == "kill":
        own_broker.start()
    letters.send(*numbers(3, 6))

    eventually(lambda: len(query.read()) >= 6 or not query.running.isActive, PATIENCE)
    assert query.running.exception() is None
    assert numbers(6) == query.read()

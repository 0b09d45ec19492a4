"""Reading where roles have few rights, without Spark."""

from __future__ import annotations

import uuid

import pulsar
import pyarrow as pa
import pytest

from pulsar_retry_spark.errors import PulsarFailuresError, PulsarSourceError
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.sink.sink import Task, send_batches
from pulsar_retry_spark.source.batch import schema
from pulsar_retry_spark.source.source import FailureReader
from support.brokers.admin import Admin
from support.spark.sourcing import Letters

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@pytest.fixture
def letters(guarded):
    """Give a dead letter that the administrator has written."""
    client = pulsar.Client(
        guarded.service_url,
        pulsar.AuthenticationToken(guarded.admin_token),
        operation_timeout_seconds=90,
        logger=QUIET,
    )
    topic = f"persistent://public/default/{uuid.uuid4().hex}"
    letters = Letters(guarded.service_url, topic, client)
    letters.send(b"a")
    yield letters
    client.close()


@pytest.fixture
def read(guarded, letters):
    """Return a function that reads as the role "reader"."""

    def read(**options):
        token = {"auth.token": guarded.token("reader"), "kind": "dead_letter"}
        reader = FailureReader(letters.options | token | options, schema())
        return [
            payload
            for each in reader.partitions()
            for batch in reader.read(each)
            for payload in batch.column("payload").to_pylist()
        ]

    return read


def test_who_may_read_the_topic_alone_reads_it(guarded, letters, read):
    """To list the namespace is another right, without which the topic is taken for existing."""
    Admin(guarded.admin_url, guarded.admin_token).grant(letters.dead, "reader", "consume")
    assert [b"a"] == read()


def test_who_may_not_read_the_topic_is_told(read):
    """By an error, and not by an empty frame."""
    with pytest.raises(PulsarSourceError, match=r"\[PULSAR_SOURCE_AUTHORIZATION_ERROR\] the top"):
        read()


def test_a_token_that_is_refused_is_named(read):
    """pulsar-client would try for half a minute, and say that time is up."""
    with pytest.raises(PulsarSourceError, match=r"CONNECT_ERROR\] .* refuses the connection: "):
        read(**{"auth.token": "eyJhbGciOiJIUzI1NiJ9.e30.x"})


def write(guarded, letters, **more):
    """Write a dead letter as the role "writer"."""
    token = {"auth.token": guarded.token("writer")}
    options = SinkOptions.parse(letters.options | token | more)
    rows = pa.record_batch({"payload": [b"b"], "retryable": [False]})
    return send_batches([rows], options, Task())


def test_who_may_not_subscribe_is_told_what_to_do(guarded, letters):
    """Rows that nobody keeps are lost; where a subscription is there, none has to be made."""
    Admin(guarded.admin_url, guarded.admin_token).grant(letters.dead, "writer", "produce")
    with pytest.raises(PulsarFailuresError, match="set initial_subscription_name=none") as caught:
        write(guarded, letters)
    assert "AUTHORIZATION_ERROR" == caught.value.slug

    assert 1 == write(guarded, letters, initial_subscription_name="none").rows

"""What the tests of the Spark part share: a real Spark, and letters to read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from local_spark import local_session
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

import pulsar_retry as pr
from pulsar_retry_spark import clients
from support.reading import SUBSCRIPTION
from support.spark.sourcing import Letters, Query


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """Give the session that all tests of a run, or of a worker of pytest-xdist, share.

    It has two threads, and a failed task fails its job.

    A test that needs another master says so, and Spark is restarted for it:
    `@pytest.mark.parametrize("spark", ["local[2,4]"], indirect=True)`, for four attempts a task.
    Instead of a master it may name settings; it is skipped if the jars that they name can't be had.
    """
    param = getattr(request, "param", "local[2]")
    master, conf = (param, {}) if isinstance(param, str) else ("local[2]", param)
    with contextlib.ExitStack() as stack:
        try:
            session = stack.enter_context(local_session("tests", master=master, conf=conf))
        except PySparkRuntimeError as error:
            if packages := conf.get("spark.jars.packages"):
                pytest.skip(f"skipped, because {packages} can't be had: {error}")
            raise
        yield session


@pytest.fixture
def letters(broker: Any, topic: str, client: pr.Client) -> Letters:
    """Return the topics of the test's subscription."""
    return Letters(broker.service_url, topic, client)


@pytest.fixture
def options(broker: Any, topic: str) -> dict[str, str]:
    """Give the options for the topics of the test's subscription."""
    return {"service.url": broker.service_url, "topic": topic, "subscription": SUBSCRIPTION}


@pytest.fixture
def retry(topic: str) -> str:
    """Return the name of its retry topic."""
    return f"{topic}-{SUBSCRIPTION}-RETRY"


@pytest.fixture
def dead(topic: str) -> str:
    """Return the name of its dead-letter topic."""
    return f"{topic}-{SUBSCRIPTION}-DLQ"


@pytest.fixture
def consumer(client: pr.Client, topic: str) -> pr.Consumer:
    """Give a consumer of it that gets retry letters, and retries nothing by itself."""
    return client.subscribe(
        topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared, enable_retry=True
    )


@pytest.fixture
def query(spark: SparkSession, letters: Letters, tmp_path: Path) -> Iterator[Query]:
    """Give a query of both topics; what runs at the end of the test is stopped."""
    query = Query(spark, letters.options, str(tmp_path / "checkpoint"))
    yield query
    query.stop()


@pytest.fixture
def closed_clients() -> Iterator[None]:
    """Let no client of the package outlive the topics or the broker of its test."""
    yield
    clients.close_all()

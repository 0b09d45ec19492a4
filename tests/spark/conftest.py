"""A real Spark for the tests of the Spark part: one a run, or one a worker of pytest-xdist."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pulsar_retry_spark.local import local_session


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """Give the session that all tests share: two threads, and a failed task fails its job.

    A test that needs another master says so, and Spark is restarted for it:
    `@pytest.mark.parametrize("spark", ["local[2,4]"], indirect=True)`, for four attempts a task.
    """
    with local_session("tests", master=getattr(request, "param", "local[2]")) as session:
        yield session

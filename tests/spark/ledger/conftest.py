"""What the tests of the ledger share: a stream whose rows go all ways."""

from __future__ import annotations

import pytest

from support.reading import SUBSCRIPTION
from support.spark.routed import Job


@pytest.fixture
def job(spark, broker, topic, tmp_path):
    """Give the stream, with topics of its own."""
    options = {"service.url": broker.service_url, "topic": topic, "subscription": SUBSCRIPTION}
    return Job(spark, options, tmp_path)

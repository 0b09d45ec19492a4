"""A logging configuration that fails disturbs no message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker, assert_dead_lettered


class Broken(logging.Filter):
    """Wants an attribute that no record has."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Raise an error."""
        return bool(record.request_id)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def broken() -> Iterator[None]:
    """Give the package's logger such a filter."""
    logger, each = logging.getLogger("pulsar_retry"), Broken()
    logger.addFilter(each)
    yield
    logger.removeFilter(each)


def fails(_: Any) -> None:
    """Fail."""
    raise ValueError("no such order")


async def fails_on_a_loop(_: Any) -> None:
    """Fail, too."""
    await asyncio.sleep(0)
    fails(_)


@pytest.mark.parametrize("handler", [fails, fails_on_a_loop])
def test_failures_that_cannot_be_logged(
    memory: MemoryBroker, capfd: pytest.CaptureFixture[str], handler: Callable[..., Any]
) -> None:
    """They are retried and dead-lettered as always; standard error has what the filter raised."""
    memory.send("orders", b"x")
    policy = pr.RetryPolicy(max_attempts=2)
    with memory.client().subscriber("orders", "billing", handler, retry_policy=policy):
        memory.join("orders", "billing")
    assert_dead_lettered(memory, "orders", "billing", data=[b"x"])
    assert "no attribute 'request_id'" in capfd.readouterr().err


def test_an_end_that_cannot_be_logged(memory: MemoryBroker) -> None:
    """It is no normal one: health, `result` and so the exit code say so."""
    memory.send("orders", b"x")
    policy = pr.RetryPolicy(stop_on=ValueError)
    subscriber = memory.client().subscriber("orders", "billing", fails, retry_policy=policy)
    subscriber.start()
    with pytest.raises(ValueError, match="no such order"):
        subscriber.result(60)
    assert subscriber.health.state == "failed"

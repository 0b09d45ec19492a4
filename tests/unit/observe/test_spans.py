"""Spans do not change what becomes of a message."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

import pulsar_retry as pr
from pulsar_retry.observe.failures import LogLimiter
from pulsar_retry.observe.tracing import outgoing
from pulsar_retry.testing import MemoryBroker, assert_dead_lettered


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """An error whose attributes cannot be set."""

    code: int


class Raising(SpanProcessor):
    """Raises whenever a span ends."""

    def on_end(self, span: ReadableSpan) -> None:
        """Raise an error."""
        raise ValueError(span.name)


class Refusing(SpanProcessor):
    """Raises whenever a span begins."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002 - the SDK's
        """Raise an error."""
        raise ValueError(span.name)


def raises(*_: Any, **__: Any) -> Any:
    """Raise an error, as a propagator that was configured wrongly."""
    raise ValueError("no context")


def fails(_: Any) -> None:
    """Fail."""
    raise FrozenError(5)


async def fails_on_a_loop(_: Any) -> None:
    """Fail, too."""
    await asyncio.sleep(0)
    raise FrozenError(5)


@pytest.fixture(params=[False, True], ids=["without spans", "with spans"])
def traced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Give spans to what the test makes, or none."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test") if request.param else None
    monkeypatch.setattr("pulsar_retry.observe.spans.tracer", lambda: tracer)
    return bool(request.param)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("handler", [fails, fails_on_a_loop])
def test_a_frozen_error_stays_what_it_is(memory: MemoryBroker, handler: Callable[..., Any]) -> None:
    """The policy finds its class; contextlib would raise another one, as it sets the traceback."""
    policy = pr.RetryPolicy(max_attempts=3, dead_letter_on=FrozenError)
    memory.send("orders", b"x")
    with memory.client().subscriber("orders", "billing", handler, retry_policy=policy):
        memory.join("orders", "billing")
    assert_dead_lettered(memory, "orders", "billing", data=[b"x"], reason="not-retryable")


@pytest.mark.usefixtures("traced")
def test_a_frozen_error_leaves_the_block(memory: MemoryBroker) -> None:
    """Whoever handles messages in an own loop gets the own error."""
    consumer = memory.client().subscribe("orders", "billing")
    memory.send("orders", b"x")
    with pytest.raises(FrozenError), pr.process_span(consumer.receive(1000)):
        raise FrozenError(5)


@pytest.fixture(params=["processor", "propagator"])
def broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the part of tracing that is the user's."""
    monkeypatch.setattr("pulsar_retry.observe.failures._troubles", LogLimiter())
    provider = TracerProvider(shutdown_on_exit=False)
    if request.param == "processor":
        provider.add_span_processor(Refusing())
    else:
        monkeypatch.setattr("opentelemetry.propagate.extract", raises)
    monkeypatch.setattr("pulsar_retry.observe.spans.tracer", lambda: provider.get_tracer("test"))


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_span_that_cannot_be_started(
    memory: MemoryBroker, caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    """The handler is called, and its message acknowledged; the error is logged once a minute."""
    handled: list[bytes] = []

    def handle(message: Any) -> None:
        handled.append(message.data())

    async def handle_on_a_loop(message: Any) -> None:
        await asyncio.sleep(0)
        handle(message)

    memory.send("orders", b"x")
    memory.send("orders", b"y")
    handler: Any = handle_on_a_loop if is_async else handle
    with memory.client().subscriber("orders", "billing", handler, concurrency=1):
        memory.join("orders", "billing")
    assert [b"x", b"y"] == handled
    assert ["the start of a span raised an exception"] == [each.message for each in caplog.records]
    assert_dead_lettered(memory, "orders", "billing", data=[])


@pytest.mark.usefixtures("broken")
def test_a_block_without_its_span(memory: MemoryBroker) -> None:
    """Whoever handles messages in an own loop is not disturbed, either."""
    consumer = memory.client().subscribe("orders", "billing")
    memory.send("orders", b"x")
    with pr.process_span(consumer.receive(1000), "billing") as span:
        assert not span.is_recording()


def test_headers_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request goes out without them."""
    monkeypatch.setattr("pulsar_retry.observe.tracing._propagation", lambda: (object, raises))
    assert not outgoing()


def test_a_span_that_cannot_be_ended(
    memory: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The message has succeeded; what the span's processor raises is logged once a minute."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Raising())
    monkeypatch.setattr("pulsar_retry.observe.spans.tracer", lambda: provider.get_tracer("test"))
    memory.send("orders", b"x")
    memory.send("orders", b"y")
    handled: list[bytes] = []
    handle = lambda message: handled.append(message.data())  # noqa: E731
    with (
        caplog.at_level(logging.WARNING),
        memory.client().subscriber("orders", "billing", handle),
    ):
        memory.join("orders", "billing")
    assert [b"x", b"y"] == handled
    assert ["the end of a span raised an exception"] == [
        each.message for each in caplog.records if "span" in each.message
    ]

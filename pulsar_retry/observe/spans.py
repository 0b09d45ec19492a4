"""OpenTelemetry spans, by its semantic conventions for messaging. Needs the extra ``otel``."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import attrs
from opentelemetry import context, propagate, trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pulsar_retry._version import __version__
from pulsar_retry.letters.letter import Letter
from pulsar_retry.observe.failures import log_trouble
from pulsar_retry.observe.watch import TRACE, HandOver
from pulsar_retry.policy.outcomes import Outcome, outcome_of, unwrapped
from pulsar_retry.wire.names import logical
from pulsar_retry.wire.properties import (
    FAILURE_TRACEPARENT,
    REAL_SUBSCRIPTION,
    attempt_of,
    message_id_text,
)

_W3C = TraceContextTextMapPropagator()
_SUBSCRIPTION = "messaging.destination.subscription.name"


def tracer() -> trace.Tracer | None:
    """Return the tracer; None if no tracer provider is configured."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("pulsar_retry", __version__)


class _Current:
    """Makes a span the current one, and ends it.

    `contextlib.contextmanager` sets an attribute of what is raised, which a frozen error refuses.
    """

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> Span:
        self._token = context.attach(trace.set_span_in_context(self._span))
        return self._span

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        context.detach(self._token)
        if error is not None:
            _failed(self._span, error)
        try:
            self._span.end()
        except Exception as trouble:  # noqa: BLE001 - it is the code of a user's span processor
            log_trouble("the end of a span", trouble)


class Spans:
    """Makes the spans of one subscription. Thread-safe."""

    def __init__(self, tracer: trace.Tracer, subscription: str | None) -> None:
        self._tracer = tracer
        self._subscription = subscription

    def process(self, message: Any) -> AbstractContextManager[Span]:
        """Return what makes the current span for one attempt at *message*, a `pulsar.Message`.

        It is a child of the producer's span. Within another span it is a child of that span, with a
        link to the producer's span. Each later attempt has a link to the first one. If the span
        cannot be started, that is logged, and there is none.
        """
        try:
            return _Current(self._started(message))
        except Exception as trouble:  # noqa: BLE001 - it is the code of a user's tracing
            log_trouble("the start of a span", trouble)
            return nullcontext(trace.INVALID_SPAN)

    def _started(self, message: Any) -> Span:
        carried = _carried(message)
        producer, parent = (
            _valid(propagate.extract(carried)),
            trace.get_current_span().get_span_context(),
        )
        first = _first_of(carried)
        links = [Link(first, {"pulsar_retry.link": "first_attempt"})] if first else []
        if parent.is_valid and producer is not None:
            links.append(Link(producer, {"pulsar_retry.link": "producer"}))
        span = self._tracer.start_span(
            f"process {logical(message.topic_name())}",
            None if parent.is_valid else propagate.extract(carried),
            SpanKind.CONSUMER,
            self.attributes(message._message, "process", "process"),
            links,
        )
        # The message carries the context to the code that makes its letter, on any thread.
        message.__dict__[TRACE] = partial(self._with_trace, span.get_span_context())
        return span

    def traced(self, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return *handler* with a span around it."""

        def handle(message: Any) -> Any:
            with self.process(message) as span:
                return _with_outcome(span, handler(message))

        return handle

    def traced_async(self, handler: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Any]:
        """Return *handler*, which is ``async def``, with a span around it."""

        async def handle(message: Any) -> Any:
            with self.process(message) as span:
                return _with_outcome(span, await handler(message))

        return handle

    def handed_on(
        self,
        attempt: SpanContext,
        began: int,
        hand_over: HandOver,
        error: BaseException | None = None,
    ) -> None:
        """Make the span of a hand-off at its end.

        Args:
            attempt: The context of the attempt's span.
            began: When the letter was created, in nanoseconds since 1970.
            hand_over: The message and its letter.
            error: Why the message could not be handed on; None: it was.
        """
        letter = hand_over.letter
        name = "dead_letter" if letter.dead else "retry"
        attributes = self.attributes(hand_over.raw, "settle", name)
        attributes["pulsar_retry.letter_topic"] = letter.topic
        attributes.setdefault(_SUBSCRIPTION, letter.properties.get(REAL_SUBSCRIPTION, ""))
        if letter.dead:
            attributes["pulsar_retry.reason"] = letter.reason or ""
        else:
            attributes["pulsar_retry.delay"] = letter.delay
        span = self._tracer.start_span(
            f"{name} {attributes['messaging.destination.name']}",
            trace.set_span_in_context(trace.NonRecordingSpan(attempt)),
            SpanKind.CLIENT,
            attributes,
            start_time=began,
        )
        if error is not None:
            _failed(span, error)
        span.end()

    def attributes(self, raw: Any, kind: str, name: str) -> dict[str, Any]:
        """Return the attributes of a span of one message.

        Args:
            raw: The raw message.
            kind: The type of the operation, in OpenTelemetry's conventions.
            name: Its name.
        """
        topic = raw.topic_name()
        attributes = {
            "messaging.system": "pulsar",
            "messaging.operation.type": kind,
            "messaging.operation.name": name,
            "messaging.destination.name": logical(topic),
            "messaging.message.id": message_id_text(raw.message_id()),
            "messaging.message.body.size": raw.length(),
            "pulsar_retry.attempt": _attempt(raw),
        }
        if topic != logical(topic):
            attributes["messaging.destination.partition.id"] = topic.rpartition("-")[2]
        if subscription := self._subscription or _carried(raw).get(REAL_SUBSCRIPTION):
            attributes[_SUBSCRIPTION] = subscription
        return attributes

    def _with_trace(self, attempt: SpanContext, message: Any, letter: Letter) -> Letter:
        """Return *letter* with what its span needs, and the link to the first attempt, if any."""
        if FAILURE_TRACEPARENT not in _carried(message):
            carrier: dict[str, str] = {}
            _W3C.inject(carrier, trace.set_span_in_context(trace.NonRecordingSpan(attempt)))
            if "traceparent" in carrier:
                letter.properties.setdefault(FAILURE_TRACEPARENT, carrier["traceparent"])
        return attrs.evolve(letter, trace=partial(self.handed_on, attempt, time.time_ns()))


def _first_of(carried: dict[str, str]) -> SpanContext | None:
    text = carried.get(FAILURE_TRACEPARENT)
    return None if text is None else _valid(_W3C.extract({"traceparent": text}))


def _valid(context: Any) -> SpanContext | None:
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid and found.is_remote else None


def _carried(message: Any) -> dict[str, str]:
    try:
        return dict(message.properties())
    except UnicodeDecodeError:
        return {}


def _attempt(message: Any) -> int:
    try:
        return attempt_of(message)
    except UnicodeDecodeError:
        return 1


def _with_outcome(span: Span, result: Any) -> Any:
    if result is not None and (outcome := outcome_of(result)) is not None:
        _failed(span, outcome)
    return result


def _failed(span: Span, error: BaseException) -> None:
    """Record in *span* what was raised; an outcome that a handler chose is not an error."""
    if isinstance(error, Exception) and isinstance(chosen := unwrapped(error), Outcome):
        span.set_attribute("pulsar_retry.outcome", type(chosen).__name__.lower())
        error = chosen.__cause__ or chosen
        if isinstance(error, Outcome):
            return
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, type(error).__qualname__))

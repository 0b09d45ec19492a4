"""Spans if OpenTelemetry is installed and configured; otherwise these functions do nothing."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import pulsar

from pulsar_retry.observe.failures import log_trouble

if TYPE_CHECKING:  # the module needs the packages of an extra
    from pulsar_retry.observe.spans import Spans


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.trace") is not None
    except ModuleNotFoundError:
        return False


#: Whether the extra ``otel`` is installed.
INSTALLED = _is_installed()


def spans_of(subscription: str | None) -> Spans | None:
    """Return the maker of spans for a subscription; None if tracing is not configured.

    A subscriber calls this once, when it starts. So configure OpenTelemetry before.
    """
    if not INSTALLED:
        return None
    from pulsar_retry.observe.spans import Spans, tracer  # an extra

    makes = tracer()
    return None if makes is None else Spans(makes, subscription)


def outgoing() -> dict[str, str]:
    """Return headers that pass the current span to a called service; empty if there is no span."""
    carrier: dict[str, str] = {}
    if INSTALLED:
        current, inject = _propagation()
        if current():  # for each message, a call of the propagators would cost ten times as much
            try:
                inject(carrier)
            except Exception as trouble:  # noqa: BLE001 - it is the code of a user's propagator
                log_trouble("a propagator", trouble)
    return carrier


@cache  # an import statement costs more than this call
def _propagation() -> tuple[Callable[[], object], Callable[[dict[str, str]], None]]:
    """Return the function for the current context, and the one that writes it into headers."""
    from opentelemetry.context import get_current  # an extra
    from opentelemetry.propagate import inject  # an extra

    return get_current, inject


def process_span(
    message: pulsar.Message, subscription: str | None = None
) -> AbstractContextManager[Any]:
    """Make a span for one attempt at *message*; it is current within the ``with`` block.

    Use it in your own loops with `Consumer` or `Client.pull`. A `Subscriber` and a dispatcher make
    such spans themselves. The span is a child of the producer's span, whose context is read from
    the message's properties (W3C ``traceparent``, or the format of your propagators). Within
    another span it is a child of that span, with a link to the producer's span. Each later attempt
    has a link to the first one, because retry letters carry its context. An exception of the block
    is passed on; the span records only its type. Letters that are made within the block, or later
    from the same message, have their own span, ``retry`` or ``dead_letter``, which ends when the
    original is acknowledged.

    It does nothing unless ``pulsar-retry[otel]`` is installed and a tracer provider is configured.

    Args:
        message: A `pulsar.Message`.
        subscription: The subscription's name, for the span.

    Returns:
        The context manager. Its value is the `opentelemetry.trace.Span`; None if tracing is off.
    """
    spans = spans_of(subscription)
    return nullcontext() if spans is None else spans.process(message)

"""Spans where OpenTelemetry is installed and configured, nothing where it is not."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:  # it needs what an extra brings
    from pulsar_retry.observe.spans import Spans


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.trace") is not None
    except ModuleNotFoundError:
        return False


#: Whether the extra ``otel`` is there.
INSTALLED = _is_installed()


def spans_of(subscription: str | None) -> Spans | None:
    """Return what makes the spans of a subscription; None: nobody wants any.

    Looked at once for each subscriber, when it starts: configure OpenTelemetry before.
    """
    if not INSTALLED:
        return None
    from pulsar_retry.observe.spans import Spans, tracer  # noqa: PLC0415 - an extra

    makes = tracer()
    return None if makes is None else Spans(makes, subscription)


def outgoing() -> dict[str, str]:
    """Return headers that tell whoever is called of the current span; empty: there is none."""
    carrier: dict[str, str] = {}
    if INSTALLED:
        current, inject = _propagation()
        if current():  # to ask propagators costs ten times as much, for each message
            inject(carrier)
    return carrier


@cache  # an import statement costs more than the question
def _propagation() -> tuple[Callable[[], object], Callable[[dict[str, str]], None]]:
    """Return what gives the current context, and what writes it into headers."""
    from opentelemetry.context import get_current  # noqa: PLC0415 - an extra
    from opentelemetry.propagate import inject  # noqa: PLC0415 - an extra

    return get_current, inject


@contextlib.contextmanager
def process_span(message: Any, subscription: str | None = None) -> Iterator[Any]:
    """Give a span for one attempt at *message*, current within the ``with`` block.

    For loops of your own, with `Consumer` or `Client.pull`; a `Subscriber` and a dispatcher make
    such spans by themselves. The span is a child of the producer's, whose context is read from the
    message's properties (W3C ``traceparent``, or as your propagators have it); within another span
    it is a child of that one and has a link to the producer's. Each later attempt has a link to the
    first, for retry letters carry its context. What the block raises is passed on, and said in the
    span by its type alone. Letters that are made within the block, or later of the same message,
    get a span of their own, ``retry`` or ``dead_letter``, until the original is acknowledged.

    Does nothing unless ``pulsar-retry[otel]`` is installed and a tracer provider is configured.

    Args:
        message: A `pulsar.Message`.
        subscription: The subscription's name, for the span.

    Yields:
        The `opentelemetry.trace.Span`; None where nothing is done.
    """
    spans = spans_of(subscription)
    if spans is None:
        yield None
        return
    with spans.process(message) as span:
        yield span


def settling(letter: Any, message: Any, subscription: str) -> Any:
    """Return *letter* with the span of its hand-off and the link to the first attempt, if any."""
    if not getattr(message, "_pulsar_retry_span", None):
        return letter
    from pulsar_retry.observe.spans import Settling, link_to_first  # noqa: PLC0415 - an extra

    for name, value in link_to_first(message).items():
        letter.properties.setdefault(name, value)
    return attrs.evolve(letter, span=Settling.begin(message, letter, subscription))

"""pulsar-client's errors, as both of its faces name them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import pulsar
import pulsar.asyncio

from pulsar_retry.consumer.results import error_of
from pulsar_retry.errors import PulsarRetryError


def failure(error: Exception) -> Exception:
    """Return *error* so that ``except pulsar.Timeout`` catches it, and `pulsar.asyncio`'s too."""
    has_a_name = isinstance(error, pulsar.PulsarException | pulsar.asyncio.PulsarException)
    if not has_a_name or isinstance(error, PulsarRetryError) or type(error).__module__ == __name__:
        return error  # the last one has both names already
    named: Any = error
    if isinstance(named, pulsar.asyncio.PulsarException):
        named = error_of(named.error())
    kind: Any = type(named)
    both: Exception = _both(kind)(pulsar.Result.__members__.get(kind.__name__), str(error))
    return both


def of_result(result: pulsar.Result) -> Exception:
    """Return the error that stands for *result*."""
    return failure(error_of(result))


@contextlib.contextmanager
def named_twice() -> Iterator[None]:
    """Let what pulsar-client raises in here be caught by both of its names."""
    try:
        yield
    except (pulsar.PulsarException, pulsar.asyncio.PulsarException) as error:
        other = failure(error)
        if other is error:
            raise
        raise other from None


@cache
def _both(kind: Any) -> type[Exception]:
    """Return a class of both families for one of pulsar-client's."""

    def text(self: pulsar.asyncio.PulsarException) -> str:
        return str(self._msg)

    members = {"__module__": __name__, "__doc__": kind.__doc__, "__str__": text}
    return type(kind.__name__, (pulsar.asyncio.PulsarException, kind), members)

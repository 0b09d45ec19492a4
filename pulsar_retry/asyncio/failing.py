"""pulsar-client's errors, with the types of both `pulsar` and `pulsar.asyncio`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import pulsar
import pulsar.asyncio

from pulsar_retry.runtime.upstream import error_of


def failure(error: Exception) -> Exception:
    """Return *error* with a type that is an error of both `pulsar` and `pulsar.asyncio`."""
    if not isinstance(error, pulsar.PulsarException) or type(error).__module__ == __name__:
        return error  # an error of this module has both types already
    its_own: Any = type(error)
    kind: Any = _both(its_own)
    both: Exception = kind.__new__(kind, *error.args)
    both.__dict__.update(error.__dict__, _result=_result(error), _msg=None)
    both.__cause__, both.__context__ = error.__cause__, error.__context__
    return both.with_traceback(error.__traceback__)


def _result(error: BaseException | None) -> pulsar.Result:
    """Return the result code of *error*, or of the error behind it."""
    while error is not None:
        for kind in type(error).__mro__:
            if kind.__name__ in pulsar.Result.__members__:
                return pulsar.Result.__members__[kind.__name__]
        error = error.__cause__
    return pulsar.Result.UnknownError


def of_result(result: pulsar.Result) -> Exception:
    """Return the error for *result*."""
    return failure(error_of(result))


@contextlib.contextmanager
def translating_errors() -> Iterator[None]:
    """Give pulsar-client's errors in this block both types."""
    try:
        yield
    except pulsar.PulsarException as error:
        raise failure(error) from error.__cause__


@cache
def _both(kind: Any) -> type[Exception]:
    """Return a class of both families for one of pulsar-client's error classes."""
    members = {"__module__": __name__, "__doc__": kind.__doc__, "__str__": kind.__str__}
    return type(kind.__name__, (kind, pulsar.asyncio.PulsarException), members)

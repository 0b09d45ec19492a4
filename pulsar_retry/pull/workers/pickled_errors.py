"""Errors that are sent to another process, whatever they are.

An exception is pickled as its class and arguments. That fails for one whose `__init__` takes
keywords only, or that has a lock. It also loses the traceback, and what the exception was raised
from.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from typing import Any

import attrs

from pulsar_retry.wire.stack import Description, bring, described

#: How many errors of a chain of causes are sent.
_MOST_CAUSES = 20


@attrs.frozen
class PickledError:
    """An error, in parts that can be pickled.

    Attributes:
        whole: The pickled error; None if it cannot be pickled.
        kinds: Its class and the bases of the class, pickled; only those that can be imported.
        attributes: Its attributes, pickled; only those that can be.
        members: The members of an exception group; None if it is no group.
        message: The message of the group.
        cause: What it was raised from.
        context: What was handled when it was raised.
        hides_context: Whether that does not matter.
        description: Its class, text and traceback in words.
    """

    whole: bytes | None
    kinds: tuple[bytes, ...]
    attributes: dict[str, bytes]
    members: tuple[PickledError, ...] | None
    message: str | None
    cause: PickledError | None
    context: PickledError | None
    hides_context: bool
    description: Description


def pickled_error(error: BaseException) -> PickledError:
    """Return *error* in parts that can be pickled. It never raises."""
    parts = _parts(error, ())
    assert parts is not None  # noqa: S101 - nothing was seen before
    return parts


def _parts(error: BaseException | None, seen: tuple[int, ...]) -> PickledError | None:
    """Return the parts of an error; None if it is one of its own causes, or there are too many."""
    if error is None or id(error) in seen or len(seen) >= _MOST_CAUSES:
        return None
    seen = (*seen, id(error))
    members = message = None
    if isinstance(error, BaseExceptionGroup):
        message = error.message
        each = (_parts(member, seen) for member in error.exceptions)
        members = tuple(member for member in each if member is not None)
    return PickledError(
        whole=None if members else _pickled(error),
        kinds=tuple(filter(None, map(_pickled, type(error).__mro__[:-1]))),
        attributes=dict(_pickled_attributes(error)),
        members=members,
        message=message,
        cause=_parts(error.__cause__, seen),
        context=None if error.__suppress_context__ else _parts(error.__context__, seen),
        hides_context=error.__suppress_context__,
        description=described(error),
    )


def _pickled(value: Any) -> bytes | None:
    """Return *value* in pickled form; None if it cannot be pickled."""
    with contextlib.suppress(Exception):  # the value's own code may raise anything
        return pickle.dumps(value)
    return None


def _pickled_attributes(error: BaseException) -> Iterator[tuple[str, bytes]]:
    for name, value in {"args": error.args, **error.__dict__}.items():
        if (pickled := _pickled(value)) is not None:
            yield name, pickled


def restored_error(parts: PickledError) -> BaseException:
    """Return a copy of an error of another process.

    If the error itself cannot be unpickled, it is an instance of its class, or of the nearest base
    that can be instantiated here, with the attributes that can be unpickled; `__init__` is not
    called.
    """
    error = _unpickled(parts.whole)
    if not isinstance(error, BaseException):
        error = _stand_in(parts)
    error.__cause__ = None if parts.cause is None else restored_error(parts.cause)
    error.__context__ = None if parts.context is None else restored_error(parts.context)
    error.__suppress_context__ = parts.hides_context
    if parts.description.traceback:
        error.add_note(parts.description.traceback)  # for the log
    bring(error, parts.description)
    return error


def _unpickled(data: bytes | None) -> Any:
    """Return the value; None if there is none, or its own code fails."""
    with contextlib.suppress(Exception):
        return data and pickle.loads(data)  # noqa: S301 - our own child's
    return None


def _stand_in(parts: PickledError) -> BaseException:
    """Return an instance of the nearest class that allows it."""
    arguments: tuple[Any, ...] = ()
    if parts.members is not None:
        arguments = (parts.message, [restored_error(each) for each in parts.members])
    error = next(_instances(parts.kinds, arguments))
    error.args = (parts.description.text,)
    for name, pickled in parts.attributes.items():
        with contextlib.suppress(Exception):  # a property, or a check of the class
            setattr(error, name, pickle.loads(pickled))  # noqa: S301 - our own child's
    return error


def _instances(kinds: tuple[bytes, ...], arguments: tuple[Any, ...]) -> Iterator[BaseException]:
    for pickled in kinds:
        kind = _unpickled(pickled)
        with contextlib.suppress(Exception):
            yield kind.__new__(kind, *arguments)

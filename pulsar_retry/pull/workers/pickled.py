"""Messages and errors that are sent to another process."""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import _pulsar
import attrs
import pulsar

from pulsar_retry.consumer.handoff.writer_schemas import LettersSchema
from pulsar_retry.runtime.upstream import message_of, raw_of
from pulsar_retry.wire.stack import Description, bring, described

# -- messages -------------------------------------------------------------------------------------

#: What a handler may read of a message, by the names of pulsar-client's methods. Some of the texts
#: may not be UTF-8.
_READ = (
    "data",
    "properties",
    "partition_key",
    "ordering_key",
    "publish_timestamp",
    "event_timestamp",
    "topic_name",
    "redelivery_count",
    "schema_version",
    "int_schema_version",
    "producer_name",
)


class Writers:
    """Has the schema of a message's writer, as pulsar-client's client has it in a process with one.

    The parent asks the broker. If that fails, its error is raised where the schema is needed.
    """

    written: Any = None

    def get_schema_info(self, _topic: str, _version: int) -> Any:
        """Return the schema of the message in hand.

        Raises:
            Exception: the parent has no schema.
        """
        if isinstance(self.written, Exception):
            raise self.written
        definition = json.dumps(self.written)
        return _pulsar.SchemaInfo(_pulsar.SchemaType.AVRO, "AVRO", definition)


def carried(message: Any) -> dict[str, Any]:
    """Return what a handler may read of a message, in parts that can be pickled.

    ``written`` is the Avro schema that it was written with, if any. In place of what cannot be
    read, there is the error.
    """
    raw, schema = raw_of(message), message._schema  # noqa: SLF001 - it decodes the message
    return {
        **{name: _read(getattr(raw, name), UnicodeDecodeError) for name in _READ},
        "message_id": raw.message_id().serialize(),
        "has_null_value": raw.has_null_value(),
        "retries_in_lane": message.retries_in_lane,
        "written": _read(lambda: schema.written(raw), Exception)
        if isinstance(schema, LettersSchema)
        else None,
    }


def _read(read: Callable[[], Any], expected: type[Exception]) -> Any:
    try:
        return read()
    except expected as error:
        return error


class _Restored:
    """Stands in for pulsar-client's own message, with the same methods."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self._parts = parts

    def __getattr__(self, name: str) -> Any:
        try:
            value = self._parts[name]
        except KeyError:
            raise AttributeError(name) from None
        if name == "message_id":
            value = pulsar.MessageId.deserialize(value)

        def read() -> Any:
            if isinstance(value, UnicodeDecodeError):
                raise value
            return value

        return read

    def length(self) -> int:
        """Return the number of bytes."""
        return len(self._parts["data"])

    def encryption_context(self) -> None:
        """Return None: the context is not sent to the other process."""


def restored(parts: dict[str, Any], schema: Any) -> pulsar.Message:
    """Return a `pulsar.Message` that reads like the original."""
    message = message_of(_Restored(parts), schema)
    message.retries_in_lane = parts["retries_in_lane"]
    return message


# -- errors ---------------------------------------------------------------------------------------

#: How many errors of a chain of causes are sent.
_MOST_CAUSES = 20


@attrs.frozen
class PickledError:
    """An error, in parts that can be pickled.

    Pickled as a whole, an exception is its class and its arguments. That fails for one whose
    `__init__` takes keywords only, or that has a lock, and loses the traceback and the causes.

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
    assert parts is not None  # nothing was seen before
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
        return data and pickle.loads(data)
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
            setattr(error, name, pickle.loads(pickled))
    return error


def _instances(kinds: tuple[bytes, ...], arguments: tuple[Any, ...]) -> Iterator[BaseException]:
    for pickled in kinds:
        kind = _unpickled(pickled)
        with contextlib.suppress(Exception):
            yield kind.__new__(kind, *arguments)

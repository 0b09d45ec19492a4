"""Messages and errors that are sent to another process."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import _pulsar
import pulsar

from pulsar_retry.consumer.handoff.writer_schemas import LettersSchema
from pulsar_retry.errors import attributes_of, inborn
from pulsar_retry.runtime.upstream import message_of, raw_of
from pulsar_retry.wire.stack import bring, described

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
    raw, schema = raw_of(message), message._schema  # it decodes the message
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

#: How many errors are sent at once: one, its causes and its members.
_MOST_ERRORS = 20

#: What Python sets beside the attributes of an error.
_AROUND = ("__cause__", "__context__", "__suppress_context__")


def dumps(value: Any) -> bytes:
    """Return *value*, in which there may be errors of any kind, in pickled form."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    """Pickles errors with their descriptions and causes, as far as possible.

    By itself, an error is pickled as its class and its arguments. That fails for one whose
    `__init__` takes keywords only, or that has a lock, and loses the traceback and the causes.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._left = _MOST_ERRORS

    def reducer_override(self, value: Any) -> Any:
        """Return how to make an error in the other process; leave other values to pickle."""
        if not isinstance(value, BaseException):
            return NotImplemented
        self._left -= 1
        description = described(value)
        state = {"args": _pickled((description.text,)), **dict(_pickled_attributes(value))}
        cause, context, is_suppressed = (inborn(name)(value) for name in _AROUND)
        if self._left <= 0:
            cause = context = None
        if is_suppressed:
            context = None
        rest = cause, context, is_suppressed, description
        return _made, _recipe(value), (state, *rest), None, None, _restore


def _pickled_attributes(error: BaseException) -> Iterator[tuple[str, bytes]]:
    for name, value in {"args": inborn("args")(error), **attributes_of(error)}.items():
        if (data := _pickled(value)) is not None:
            yield name, data


def _recipe(error: BaseException) -> tuple[Any, ...]:
    """Return what `_made` needs; each part in a pickle of its own, because each may fail."""
    kinds = tuple(filter(None, map(_pickled, type(error).__mro__[:-1])))
    if isinstance(error, BaseExceptionGroup):
        return None, kinds, error.message, error.exceptions
    return _pickled(error), kinds


def _made(whole: bytes | None, kinds: tuple[bytes, ...], *arguments: Any) -> BaseException:
    """Return an error of the other process.

    If this process cannot make it from what is pickled, it is an instance of the nearest class that
    can be imported here; `__init__` is not called.
    """
    error = _unpickled(whole)
    return error if isinstance(error, BaseException) else next(_instances(kinds, arguments))


def _instances(kinds: tuple[bytes, ...], arguments: tuple[Any, ...]) -> Iterator[BaseException]:
    for kind in map(_unpickled, kinds):
        with contextlib.suppress(Exception):  # the error's own code may raise
            yield kind.__new__(kind, *arguments)


def _pickled(value: Any) -> bytes | None:
    """Return *value* in pickled form; None if it cannot be pickled."""
    with contextlib.suppress(Exception):  # the value's own code may raise anything
        return pickle.dumps(value)
    return None


def _unpickled(data: bytes | None) -> Any:
    """Return the value; None if there is none, or its own code fails."""
    with contextlib.suppress(Exception):
        return data and pickle.loads(data)
    return None


def _restore(error: BaseException, state: tuple[Any, ...]) -> None:
    """Complete an error that the other process has raised."""
    attributes, *around, description = state
    for name, data in attributes.items():
        with contextlib.suppress(Exception):  # a property
            BaseException.__setattr__(error, name, pickle.loads(data))  # also if it is frozen
    for name, value in zip(_AROUND, around, strict=True):
        vars(BaseException)[name].__set__(error, value)
    if description.traceback:
        with contextlib.suppress(Exception):  # it is frozen
            error.add_note(description.traceback)  # for the log
    bring(error, description)

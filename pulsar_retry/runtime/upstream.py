"""What this package uses of pulsar-client beyond its public names, checked when it is imported."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError
from datetime import datetime
from functools import partial
from types import ModuleType
from typing import Any

import _pulsar
import pulsar

from pulsar_retry.errors import ConfigError, UndecodableError, attributes_of, shown
from pulsar_retry.wire.envelope import moment_of

#: Names by module and class: private ones, and functions of the C++ binding `_pulsar` that `pulsar`
#: has not, or not in this form. What is no function is an attribute that the methods use.
NEEDED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "pulsar": {
        "Client": ("_client", "_consumers"),
        "Consumer": ("_client", "_consumer", "_schema"),
        "Message": ("_message", "_schema"),
        "MessageId": ("_msg_id",),
        "Producer": ("_build_msg", "_producer", "_schema"),
        "Reader": ("_reader",),
        "TableView": ("_table_view",),
    },
    "pulsar.schema": {"Schema": ("_record_cls", "_schema_info")},
    "_pulsar": {
        "Client": (
            *("create_producer_async_v2", "create_reader_async_v2", "subscribe_async_v2"),
            *("get_schema_info", "get_topic_partitions_async", "subscribe_async_pattern"),
            "subscribe_pattern",
        ),
        "ClientConfiguration": ("set_file_logger",),
        "ConsumerConfiguration": ("pattern_auto_discovery_period",),
        "Consumer": ("acknowledge_async", "batch_receive", "get_last_message_id_async", "receive"),
        "Message": ("encryption_context", "has_null_value", "int_schema_version", "length"),
        "MessageBuilder": ("build", "content", "deliver_at", "properties"),
        "Producer": ("send_async",),
        "Reader": ("has_message_available", "read_next"),
        "SchemaInfo": ("name", "schema", "schema_type"),
    },
    "pulsar.asyncio": {
        "Client": ("_client",),
        "Consumer": ("_consumer", "_schema"),
        "Producer": ("_producer", "_schema"),
        "Reader": ("_reader", "_schema"),
    },
}


def _names_of(kind: Any) -> set[str]:
    """Return what a class has, and what its methods use: `dir` shows no attributes of instances."""
    methods = [each for each in vars(kind).values() if inspect.isfunction(each)] if kind else []
    return {*dir(kind), *(name for each in methods for name in each.__code__.co_names)}


def check(module: ModuleType) -> None:
    """Check that *module* of the installed pulsar-client has what is `NEEDED` of it.

    Raises:
        ImportError: it has not; the message names everything that is missing.
    """
    absent = [
        f"{module.__name__}.{kind}.{name}"
        for kind, wanted in NEEDED[module.__name__].items()
        for name in sorted(set(wanted) - _names_of(getattr(module, kind, None)))
    ]
    if absent:
        raise ImportError(
            f"pulsar-client {pulsar.__version__} lacks {', '.join(absent)}, which pulsar-retry "
            "needs: install pulsar-client 3.13 or later, below 4, or a newer pulsar-retry"
        )


check(pulsar)
check(pulsar.schema)
check(_pulsar)

#: The class of schemas. Who makes one of it imports it from here, after the checks.
Schema = pulsar.schema.Schema


# -- messages and ids -----------------------------------------------------------------------------

#: What a consumer accepts where it acknowledges: its messages, and their ids.
MessageOrId = pulsar.Message | pulsar.MessageId | _pulsar.Message | _pulsar.MessageId

#: The ids of messages in batches that applications have got from their messages, by address.
_of_batches: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class Message(pulsar.Message):
    """A received message, with the marks of this package.

    Attributes:
        is_letter: Whether it came from the retry topic. None: its topic has to be read, which
            doubles the cost of a receive.
        settled: True if it was acknowledged; the future of its hand-off; None: neither.
        is_nacked: Whether this delivery was nacked and counted in `Returns`, not by the broker.
        facts: See `facts_of`.
        retries_in_lane: How often a subscriber has retried it in its lane.
        place: What a subscriber knows of it beside that; None for most messages.
    """

    is_letter: bool | None = None
    settled: Any = None
    is_nacked: bool = False
    facts: Any = None
    retries_in_lane: int = 0
    place: Any = None

    def value(self) -> Any:
        """Return the decoded payload; subscribers recognize the error of one that is broken."""
        try:
            return super().value()
        except Exception as error:
            _mark(error)
            raise

    def message_id(self) -> Any:
        """Return the id; if the message is in a batch, `is_whole_batch` recognizes it."""
        message_id = self._message.message_id()
        if message_id.batch_index() >= 0:
            _of_batches[id(message_id)] = message_id
        return message_id


def is_whole_batch(message_id: Any) -> bool:
    """Tell whether the raw id of a message in a batch stands for the whole batch.

    pulsar-client takes it so if it was made from bytes, though its values are those of a received
    message, which include the size of the batch. Ids without a size are of no received message.
    """
    if message_id.batch_index() < 0 or _of_batches.get(id(message_id)) is message_id:
        return False
    return batch_size(message_id) > 0


def batch_size(message_id: Any) -> int:
    """Return the size of the batch of a message in a batch, by its raw id; 0 if it is unknown."""
    place = message_id.partition(), message_id.ledger_id(), message_id.entry_id()
    without_size = _pulsar.MessageId(*place, message_id.batch_index()).serialize()
    varint = message_id.serialize()[len(without_size) + 1 :]  # what follows is only the size
    return sum((each & 0x7F) << 7 * number for number, each in enumerate(varint))


def raw_of(message: Any) -> Any:
    """Return the handle of a message, or of a message id."""
    if isinstance(message, pulsar.Message):
        return message._message
    if isinstance(message, pulsar.MessageId):
        return message._msg_id
    return message


def id_of(message: Any) -> Any:
    """Return the raw id of a message or of an id."""
    raw = raw_of(message)
    return raw.message_id() if isinstance(raw, _pulsar.Message) else raw


def whole_of(message: Any) -> Any:
    """Return the raw message; an id is refused, because a letter needs the whole message.

    Raises:
        ConfigError: *message* is not a message.
    """
    raw = message._message if isinstance(message, pulsar.Message) else raw_of(message)
    if not isinstance(raw, _pulsar.Message):
        raise ConfigError.bad("message", message, "a message as it was received, not its id")
    return raw


def comes_again(raw: Any, topic: Any) -> bool:
    """Tell whether the broker certainly redelivers *raw* when its connection is gone.

    Args:
        raw: A raw message that is not acknowledged.
        topic: The topic or topics that its consumer has subscribed to. A consumer of several topics
            or partitions does not show which of them has no connection. A topic that is not
            persistent redelivers nothing.
    """
    name = raw.topic_name()
    single = isinstance(topic, str) and "-partition-" not in name
    return single and not name.startswith("non-persistent:")


def publish_time(message: Any) -> datetime:
    """Return when a message, raw or not, was published."""
    return moment_of(message.publish_timestamp())


def message_of(raw: Any, schema: Any, *, letter: bool | None = None) -> Message:
    """Return the message that `pulsar.Consumer.receive` makes from pulsar-client's raw message.

    Args:
        raw: pulsar-client's raw message.
        schema: The schema that decodes its value.
        letter: Whether it came from the retry topic; None: unknown.
    """
    message = Message()
    message._message = raw
    message._schema = schema
    message.is_letter = letter
    return message


def has_message(reader: Any) -> bool:
    """Tell whether a reader, or its handle, has more to read. Blocks.

    pulsar-client also answers no if the connection is lost while it asks.

    Raises:
        pulsar.NotConnected: it is not known, because there is no connection.
        pulsar.PulsarException: the broker has not answered, or refuses.
    """
    if reader.has_message_available():
        return True
    if not reader.is_connected():
        raise pulsar.NotConnected("there is no connection")
    return bool(reader.has_message_available())  # it may have connected again meanwhile


# -- payloads that a schema cannot decode ---------------------------------------------------------

#: These are not the payload's fault. A schema asks the broker for the schema of the writer, and the
#: broker may not answer.
_NOT_THE_PAYLOAD = (pulsar.PulsarException, OSError, MemoryError)

_MARK = "_pulsar_retry_undecodable"


def _mark(error: Exception) -> None:
    """Mark an error of a schema if it is the payload's fault. It is still the schema's error."""
    if not _is_not_the_payload(error):
        with contextlib.suppress(AttributeError, TypeError):  # a class may refuse attributes
            setattr(error, _MARK, True)


def _is_not_the_payload(error: BaseException) -> bool:
    """Tell whether *error*, or one that was raised before it, is not the payload's fault.

    If the broker does not answer, pulsar-client decodes without the schema of the writer, and an
    error of that says nothing about the payload.
    """
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in chain:
        chain.append(each)
        each = each.__cause__ or each.__context__
    return any(isinstance(each, _NOT_THE_PAYLOAD) for each in chain)


def undecodable(error: BaseException) -> UndecodableError | None:
    """Return the error if it says that a payload cannot be decoded; otherwise None."""
    if isinstance(error, UndecodableError):
        return error
    if not attributes_of(error).get(_MARK):
        return None
    text = f"the payload cannot be decoded: {type(error).__qualname__}: {shown(error)}"
    found = UndecodableError(text)
    found.__cause__ = error  # it has the traceback
    return found


# -- results of asynchronous functions ------------------------------------------------------------

#: After one of these results a producer never works again and must be replaced.
PRODUCER_GONE = frozenset(
    {
        _pulsar.Result.AlreadyClosed,
        _pulsar.Result.ProducerFenced,
        _pulsar.Result.ProducerNotInitialized,
        _pulsar.Result.TopicTerminated,
    }
)


def error_of(result: _pulsar.Result) -> Exception:
    """Return the exception for *result*."""
    kind = getattr(_pulsar, result.name, _pulsar.PulsarException)
    return kind(f"Pulsar error: {result.name}")


def level_of(error: BaseException) -> int:
    """Return the level of the log for *error*, or its cause: ERROR if it stays until someone acts.

    A terminated topic accepts no message any more, however often publishing is repeated.
    """
    both = (error, error.__cause__)
    is_final = any(isinstance(each, _pulsar.TopicTerminated) for each in both)
    return logging.ERROR if is_final else logging.WARNING


def waiting_in_python(client: pulsar.Client) -> pulsar.Client:
    """Have *client* open by an `Opener`, and return it.

    A thread that waits in a blocking function of pulsar-client takes the interpreter's lock ten
    times a second. If it is a daemon and the interpreter ends meanwhile (before Python 3.14), the
    thread is ended inside of C++, which aborts the process. Threads of this package open producers
    of letters, perhaps while the process ends.
    """
    client._client = Opener(client._client)
    return client


class Opener:
    """pulsar-client's handle of a client, for threads that can block. Thread-safe.

    pulsar-client's blocking functions report only the code of an error. The asynchronous functions
    of `pulsar.asyncio` report its text too, for example an exception of an authentication plug-in.

    What is being opened while the client is closed, pulsar-client may never report: then these
    functions raise `pulsar.AlreadyClosed`.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._opening: set[Future[Any]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def create_producer(self, *arguments: Any) -> Any:
        """Return a raw producer."""
        return self._opened(self._raw.create_producer_async_v2, arguments)

    def create_reader(self, *arguments: Any) -> Any:
        """Return a raw reader."""
        return self._opened(self._raw.create_reader_async_v2, arguments)

    def subscribe(self, *arguments: Any) -> Any:
        """Return a raw consumer of one topic."""
        return self._opened(self._raw.subscribe_async_v2, arguments)

    def subscribe_topics(self, *arguments: Any) -> Any:
        """Return a raw consumer of several topics."""
        return self._opened(self._raw.subscribe_async_v2, arguments)

    def close(self) -> None:
        """Close the client."""
        self._end(self._raw.close)

    def shutdown(self) -> None:
        """Shut the client down."""
        self._end(self._raw.shutdown)

    def _end(self, close: Callable[[], None]) -> None:
        try:
            close()
        finally:
            for each in list(self._opening):
                each.cancel()

    def _opened(self, open_: Callable[..., None], arguments: tuple[Any, ...]) -> Any:
        opened: Future[Any] = Future()
        self._opening.add(opened)
        try:
            open_(*arguments, partial(_came, opened))
            result = opened.result()
        except CancelledError:
            raise error_of(_pulsar.Result.AlreadyClosed) from None
        finally:
            self._opening.discard(opened)
        if not isinstance(result, _pulsar.Error):
            return result
        error = error_of(result.error)
        raise type(error)(f"{error}: {result.message}" if result.message else str(error))


def _came(opened: Future[Any], result: Any) -> None:
    with contextlib.suppress(InvalidStateError):  # nobody waits any more
        opened.set_result(result)


class Searcher:
    """pulsar-client's handle of a client, which searches for new topics as often as is asked.

    `pulsar.Client.subscribe` takes the period, but leaves it out: pulsar-client always searches
    once a minute.
    """

    def __init__(self, raw: Any, period: int) -> None:
        self._raw, self._period = raw, period

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def subscribe_pattern(self, pattern: str, subscription: str, configuration: Any) -> Any:
        """Return a raw consumer of the topics that match."""
        configuration.pattern_auto_discovery_period(self._period)
        return self._raw.subscribe_pattern(pattern, subscription, configuration)


# -- threads --------------------------------------------------------------------------------------

# Its attributes are part of the thread state: a new state does not have `kept`.
_this = threading.local()


def keep_thread_state() -> None:
    """Keep the interpreter's state of the calling thread, which is a thread of pulsar-client.

    For each call of pulsar-client's threads the interpreter creates a thread state, with a stack
    that it maps and unmaps, and frees it again. A reference that is never released keeps the state
    for the next call; receipts of letters then cost a fifth less. When such a thread ends, a few
    kilobytes remain, for each thread of a client.
    """
    if not hasattr(_this, "kept"):
        _this.kept = True
        ctypes.pythonapi.PyGILState_Ensure()

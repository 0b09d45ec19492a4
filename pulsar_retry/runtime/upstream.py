"""What this package uses of pulsar-client beyond its public names, and what older versions lack.

It works with pulsar-client 3.9 and later, except `pulsar_retry.asyncio`, which needs 3.13.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Mapping
from operator import methodcaller
from types import ModuleType
from typing import Any

import _pulsar
import pulsar

from pulsar_retry.runtime import decoding

__all__ = [
    "BLOCKING",
    "OF_ASYNCIO",
    "OF_SCHEMAS",
    "RAW",
    "RAW_OF_ASYNCIO",
    "Message",
    "MessageOrId",
    "Schema",
    "ask_partitions",
    "check",
    "has_null_value",
    "is_whole_batch",
    "missing",
]

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
    """

    is_letter: bool | None = None
    settled: Any = None
    is_nacked: bool = False
    facts: Any = None

    def value(self) -> Any:
        """Return the decoded payload; subscribers recognize the error of one that is broken."""
        try:
            return super().value()
        except Exception as error:
            decoding.mark(error)
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
    place = message_id.partition(), message_id.ledger_id(), message_id.entry_id()
    without_size = _pulsar.MessageId(*place, message_id.batch_index())
    return bool(message_id.serialize() != without_size.serialize())


#: Names by class. What is no function is an attribute that the methods of the class use.
Names = Mapping[str, tuple[str, ...]]

#: Of `pulsar`.
BLOCKING: Names = {
    "Client": ("_client", "_consumers"),
    "Consumer": ("_client", "_consumer", "_schema"),
    "Message": ("_message", "_schema"),
    "MessageId": ("_msg_id",),
    "Producer": ("_build_msg", "_producer", "_schema"),
    "Reader": ("_reader",),
    "TableView": ("_table_view",),
}

#: Of `pulsar.schema`.
OF_SCHEMAS: Names = {"Schema": ("_record_cls", "_schema_info")}

#: Of the C++ binding, `_pulsar`: functions that `pulsar` has not, or not in this form.
RAW: Names = {
    "Client": ("get_schema_info", "get_topic_partitions", "subscribe_async_pattern"),
    "ClientConfiguration": ("set_file_logger",),
    "Consumer": ("acknowledge_async", "batch_receive", "receive"),
    "Message": ("encryption_context", "int_schema_version", "length"),
    "MessageBuilder": ("build", "content", "deliver_at", "properties"),
    "Producer": ("send_async",),
    "Reader": ("has_message_available", "read_next"),
    "SchemaInfo": ("name", "schema", "schema_type"),
}

#: Of `pulsar.asyncio`.
OF_ASYNCIO: Names = {
    "Client": ("_client",),
    "Consumer": ("_consumer", "_schema"),
    "Producer": ("_producer", "_schema"),
    "Reader": ("_reader", "_schema"),
}

#: Of the C++ binding, for `pulsar_retry.asyncio` only.
RAW_OF_ASYNCIO: Names = {
    "Client": ("create_producer_async_v2", "create_reader_async_v2", "subscribe_async_v2"),
}


def missing(module: ModuleType, names: Names) -> list[str]:
    """Return those of *names* that *module* of pulsar-client lacks, as ``module.Class.name``."""
    absent = []
    for kind, wanted in names.items():
        has = _names_of(getattr(module, kind, None))
        absent += [f"{module.__name__}.{kind}.{name}" for name in wanted if name not in has]
    return absent


def _names_of(kind: Any) -> set[str]:
    """Return what a class has, and what its methods use: `dir` shows no attributes of instances."""
    methods = [each for each in vars(kind).values() if inspect.isfunction(each)] if kind else []
    return {*dir(kind), *(name for each in methods for name in each.__code__.co_names)}


def check(module: ModuleType, names: Names, needs: str = "pulsar-retry needs") -> None:
    """Check that *module* of the installed pulsar-client has *names*.

    Raises:
        ImportError: it has not; the message names everything that is missing.
    """
    if absent := missing(module, names):
        raise ImportError(
            f"pulsar-client {pulsar.__version__} lacks {', '.join(absent)}, which {needs}: install "
            "a version of pulsar-client that this version of pulsar-retry supports"
        )


check(pulsar, BLOCKING)
check(pulsar.schema, OF_SCHEMAS)
check(_pulsar, RAW)

#: The class of schemas. Who makes one of it imports it from here, after the checks.
Schema = pulsar.schema.Schema


# -- what older versions lack -------------------------------------------------------------------


def _has_null_value(message: Any) -> bool:
    """Return False for a message of pulsar-client before 3.13, which does not tell null values."""
    ask = getattr(message, "has_null_value", None)
    return False if ask is None else bool(ask())


#: Tells whether a message, raw or not, has a null value. Before pulsar-client 3.13 it has none: its
#: letters have empty payloads.
has_null_value: Callable[[Any], bool] = (
    methodcaller("has_null_value")
    if hasattr(_pulsar.Message, "has_null_value")
    else _has_null_value
)


def ask_partitions(client: Any, topic: str, answered: Callable[[Any, Any], None]) -> None:
    """Call *answered* with a result and the partitions of *topic*, on another thread.

    Args:
        client: pulsar-client's raw client. Before 3.11 it can only block, on a thread made for it.
        topic: The topic.
        answered: The function. It must not raise.
    """
    if hasattr(client, "get_topic_partitions_async"):
        client.get_topic_partitions_async(topic, answered)
        return

    def ask() -> None:
        try:
            partitions = client.get_topic_partitions(topic)
        except pulsar.PulsarException as error:
            results = pulsar.Result.__members__
            answered(results.get(type(error).__name__, pulsar.Result.UnknownError), None)
        else:
            answered(pulsar.Result.Ok, partitions)

    threading.Thread(target=ask, name="pulsar-retry-partitions", daemon=True).start()

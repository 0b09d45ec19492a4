"""pulsar-client's messages with the marks of this package, and what older versions lack.

It works with pulsar-client 3.9 and later, except `pulsar_retry.asyncio`, which needs 3.13.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from operator import methodcaller
from typing import Any

import _pulsar
import pulsar

from pulsar_retry.runtime import decoding

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

"""The handles inside pulsar-client's own classes, which its C++ library needs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import _pulsar
import pulsar

from pulsar_retry.errors import ConfigError
from pulsar_retry.runtime.upstream import Message


def raw_of(message: Any) -> Any:
    """Return the handle of a message, or of a message id."""
    if isinstance(message, pulsar.Message):
        return message._message  # noqa: SLF001
    if isinstance(message, pulsar.MessageId):
        return message._msg_id  # noqa: SLF001
    return message


def id_of(message: Any) -> Any:
    """Return the raw id of a message or of an id."""
    raw = raw_of(message)
    return raw.message_id() if isinstance(raw, _pulsar.Message) else raw


def position_of(message_id: Any) -> tuple[int, int, int, int]:
    """Return a hashable value that identifies a raw message id within its topic."""
    return (
        message_id.ledger_id(),
        message_id.entry_id(),
        message_id.partition(),
        message_id.batch_index(),
    )


def whole_of(message: Any) -> Any:
    """Return the raw message; an id is refused, because a letter needs the whole message.

    Raises:
        ConfigError: *message* is not a message.
    """
    raw = message._message if isinstance(message, pulsar.Message) else raw_of(message)  # noqa: SLF001
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
    return datetime.fromtimestamp(message.publish_timestamp() / 1000, UTC)


def message_of(raw: Any, schema: Any, *, letter: bool | None = None) -> pulsar.Message:
    """Return the message that `pulsar.Consumer.receive` makes from pulsar-client's raw message.

    Args:
        raw: pulsar-client's raw message.
        schema: The schema that decodes its value.
        letter: Whether it came from the retry topic; None: unknown.
    """
    message = Message()
    message._message = raw  # noqa: SLF001
    message._schema = schema  # noqa: SLF001
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

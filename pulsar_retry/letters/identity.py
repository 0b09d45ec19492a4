"""The identity of a retry letter: the message that it was first made from.

`ORIGIN_MESSAGE_ID` alone is not an identity. As in the Java client, it is only written if it is
absent, and applications copy properties, including system properties, to other messages. It
therefore counts only if one of this package's producers wrote it. These producers have unique
names that begin with `pulsar-retry-`. They publish the retry letters of messages that had no
origin, or one that counts. Letters of copied messages, and of other clients' letters, are published
by producers without such a name.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from pulsar_retry.wire.properties import ORIGIN_MESSAGE_ID, Origin, message_id_text

_PREFIX = "pulsar-retry-"


def new_producer_name() -> str:
    """Return a unique name for a producer of letters with an identity."""
    return f"{_PREFIX}{uuid.uuid4().hex}"


def is_published_here(raw: Any) -> bool:
    """Tell whether a producer of this package has published the raw message as a letter."""
    return str(raw.producer_name()).startswith(_PREFIX)


def identity_of(raw: Any, properties: Mapping[str, str]) -> str | None:
    """Return the identity of the letter *raw*; None if it has none.

    Args:
        raw: The raw message.
        properties: Its properties, or those of a letter that is made from it.
    """
    if not is_published_here(raw) or _is_non_persistent(raw.topic_name()):
        return None
    return properties.get(ORIGIN_MESSAGE_ID) or None  # empty, it would be that of many messages


def of_message(raw: Any, properties: Mapping[str, str], message_id: str, topic: str) -> str | None:
    """Return the identity of a message and of the letters made from it; None if it has none.

    Args:
        raw: The message, raw or not.
        properties: See `identity_of`.
        message_id: Its id, as letters write it.
        topic: Its topic.
    """
    if _is_non_persistent(topic):
        return None
    written = properties.get(ORIGIN_MESSAGE_ID)  # empty, it would be that of many messages
    return written if written and is_published_here(raw) else message_id


def gives_identity(raw: Any, properties: Mapping[str, str], origin: Origin | None = None) -> bool:
    """Tell whether a letter of *raw* has an identity, that is, the origin of *raw*.

    Args:
        raw: The raw message that the letter is made from.
        properties: The letter's properties.
        origin: Where *raw* was delivered from; None: it is read from *raw*.
    """
    written = properties.get(ORIGIN_MESSAGE_ID)
    if origin is not None and written == origin.message_id:
        return not _is_non_persistent(origin.topic)  # as usual for a first letter
    if not written:
        return False
    if (identity := identity_of(raw, properties)) is not None:
        return identity == written
    # Most letters of a redrive end here: a text of the whole id takes ten times as long.
    return f"{raw.message_id().ledger_id()}:" in written and written == _id_of(raw)


def _id_of(raw: Any) -> str | None:
    """Return a unique name of the message *raw*; None if its id is not unique.

    Two topics of one cluster never share a ledger.
    """
    return None if _is_non_persistent(raw.topic_name()) else message_id_text(raw.message_id())


def _is_non_persistent(topic: str) -> bool:
    """Tell whether messages of *topic* have no ids of their own: it is not persistent."""
    return topic.startswith("non-persistent:")

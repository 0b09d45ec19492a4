"""The identity of a retry letter: the message that it was first made of.

`ORIGIN_MESSAGE_ID` alone is no identity. It is put only where it is absent, as in the Java client,
and applications copy properties from one message to others, the system's with them. So it counts
only where one of our producers has written it itself: retry letters of messages that carried no
origin, or one that counts, are published by producers of unique names that begin with
`pulsar-retry-`; those of copies, and of other clients' letters, by producers without such a name.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from pulsar_retry.wire.properties import ORIGIN_MESSAGE_ID, message_id_text

_PREFIX = "pulsar-retry-"


def new_producer_name() -> str:
    """Return a name for a producer of letters with an identity, which no other producer has."""
    return f"{_PREFIX}{uuid.uuid4().hex}"


def identity_of(raw: Any, properties: Mapping[str, str]) -> str | None:
    """Return the identity that the letter *raw* has; None: it has none of its own.

    Args:
        raw: The raw message.
        properties: Its properties, or those of a letter that is made of it.
    """
    if not raw.producer_name().startswith(_PREFIX) or _is_fleeting(raw):
        return None
    return properties.get(ORIGIN_MESSAGE_ID)


def of_message(raw: Any, properties: Mapping[str, str]) -> str | None:
    """Return the identity of a message and of the letters made of it; None: it has none.

    Args:
        raw: The message, raw or not.
        properties: See `identity_of`.
    """
    return identity_of(raw, properties) or _id_of(raw)


def gives_identity(raw: Any, properties: Mapping[str, str]) -> bool:
    """Tell whether a letter of *raw* has an identity: whether its origin is that of *raw*.

    Args:
        raw: The raw message that the letter is made of.
        properties: The letter's.
    """
    identity = of_message(raw, properties)
    return identity is not None and identity == properties.get(ORIGIN_MESSAGE_ID)


def _id_of(raw: Any) -> str | None:
    """Return what tells the message *raw* from all others; None: nothing does.

    No two topics of a cluster share a ledger.
    """
    return None if _is_fleeting(raw) else message_id_text(raw.message_id())


def _is_fleeting(raw: Any) -> bool:
    """Tell whether *raw* is of a non-persistent topic, whose ids are all alike."""
    return bool(raw.topic_name().startswith("non-persistent:"))

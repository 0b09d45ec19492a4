"""The identity of a retry letter: the message that it was first made of.

`ORIGIN_MESSAGE_ID` alone is no identity. It is put only where it is absent, as in the Java client,
and applications copy properties from one message to others, the system's with them. So it counts
only

- on messages of our own retry producers, which have names that no other producer has;
- if such a producer has written it itself. Where the message carried another origin already,
  copied or from another client, its letters carry `LETTER_ID` instead: the name of the letter's
  producer and the id of that message. It counts only on a message of that very producer.

Letters of other clients have no identity.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from pulsar_retry.wire.properties import LETTER_ID, ORIGIN_MESSAGE_ID, message_id_text

_PREFIX = "pulsar-retry-"


def new_producer_name() -> str:
    """Return a name for a retry producer, which no other producer has."""
    return f"{_PREFIX}{uuid.uuid4().hex}"


def identity_of(raw: Any, properties: Mapping[str, str]) -> str | None:
    """Return the identity that the letter *raw* has; None: it has none of its own.

    Args:
        raw: The raw message.
        properties: Its properties, or those of a letter that is made of it.
    """
    if (letter_id := properties.get(LETTER_ID)) is not None:
        producer, _, identity = letter_id.rpartition("/")
        return identity if producer and producer == raw.producer_name() else None
    if raw.producer_name().startswith(_PREFIX) and not _is_fleeting(raw):
        return properties.get(ORIGIN_MESSAGE_ID)
    return None


def of_message(raw: Any, properties: Mapping[str, str]) -> str | None:
    """Return the identity of a message and of the letters made of it; None: it has none.

    Args:
        raw: The message, raw or not.
        properties: See `identity_of`.
    """
    return identity_of(raw, properties) or _id_of(raw)


def with_identity(properties: dict[str, str], raw: Any, producer: str | None) -> dict[str, str]:
    """Return the properties of a letter of *raw*, with `LETTER_ID` only if the letter needs it.

    Args:
        properties: The letter's, with what *raw* carries and its origin.
        raw: The raw message that it is made of.
        producer: The name of the letter's producer; None: it is to have no identity.
    """
    inherited = LETTER_ID in properties
    identity = None if producer is None else of_message(raw, properties)
    origin = properties.get(ORIGIN_MESSAGE_ID)
    if identity is not None and (inherited or origin not in {None, identity}):
        return {**properties, LETTER_ID: f"{producer}/{identity}"}
    if inherited:
        return {name: text for name, text in properties.items() if name != LETTER_ID}
    return properties


def _id_of(raw: Any) -> str | None:
    """Return what tells the message *raw* from all others; None: nothing does.

    No two topics of a cluster share a ledger.
    """
    return None if _is_fleeting(raw) else message_id_text(raw.message_id())


def _is_fleeting(raw: Any) -> bool:
    """Tell whether *raw* is of a non-persistent topic, whose ids are all alike."""
    return bool(raw.topic_name().startswith("non-persistent:"))

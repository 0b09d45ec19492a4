"""The identity of a letter: which message it was first made of.

The properties that tell a letter's origin are put if absent, as in the Java client, and
applications copy properties from one message to others, the system's with them. So letters carry
one more, `LETTER_ID`: the name of the letter's producer and the id of the message that the first
letter was made of. It counts only on a message of that very producer, whose name the broker has
made unique; on a copy it does not. Letters of other clients have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pulsar_retry.wire.properties import LETTER_ID


def identity_of(raw: Any, properties: Mapping[str, str]) -> str | None:
    """Return the identity that the letter *raw* carries; None: it has none of its own.

    Args:
        raw: The raw message.
        properties: Its properties, or those of a letter that is made of it.
    """
    producer, _, identity = properties.get(LETTER_ID, "").rpartition("/")
    return identity if producer and producer == raw.producer_name() else None


def of_message(raw: Any, properties: Mapping[str, str]) -> str | None:
    """Return the identity of a message and of the letters made of it; None: it has none.

    Args:
        raw: The message, raw or not.
        properties: See `identity_of`.
    """
    return identity_of(raw, properties) or _id_of(raw)


def with_identity(properties: dict[str, str], raw: Any, producer: str | None) -> dict[str, str]:
    """Return the properties of a letter of *raw*, with its identity in place of what it carries.

    Args:
        properties: The letter's, with what *raw* carries.
        raw: The raw message that it is made of.
        producer: The name of the letter's producer; None: it is to have no identity.
    """
    identity = None if producer is None else of_message(raw, properties)
    if identity is not None:
        return {**properties, LETTER_ID: f"{producer}/{identity}"}
    if LETTER_ID in properties:
        return {name: text for name, text in properties.items() if name != LETTER_ID}
    return properties


def _id_of(raw: Any) -> str | None:
    """Return what tells the message *raw* from all others; None: nothing does.

    No two topics of a cluster share a ledger; the time is for those of several clusters.
    """
    if raw.topic_name().startswith("non-persistent:"):
        return None  # their ids are all alike
    message_id = raw.message_id()
    return (
        f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.batch_index()}"
        f":{raw.publish_timestamp()}"
    )

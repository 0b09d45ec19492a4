"""Facts about the origin of a message, read from the message or its letters."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.identity import of_message
from pulsar_retry.runtime.raw import publish_time
from pulsar_retry.wire.codecs import read_envelope
from pulsar_retry.wire.envelope import Redact
from pulsar_retry.wire.names import logical
from pulsar_retry.wire.properties import (
    REAL_TOPIC,
    message_id_text,
    origin_message_id,
)


def checked_redact(redact: Callable[[str, str], str | None] | None) -> Redact | None:
    """Return *redact*.

    Raises:
        ConfigError: *redact* is not callable.
    """
    if redact is not None and not callable(redact):
        raise ConfigError.bad("redact", redact, "a function of a name and a text, or None")
    return redact


def first_published_at(message: Any) -> datetime:
    """Return when a message was first published; for other clients' letters, the letter's time."""
    return read_envelope(message.properties()).published or publish_time(message)


def origin_key(message: Any) -> str:
    """Return the identity of a message, which all of its letters share."""
    properties = message.properties()
    origin = origin_message_id(properties) or message_id_text(message.message_id())
    return f"{properties.get(REAL_TOPIC) or logical(message.topic_name())} {origin}"


def chain_key(message: Any) -> str:
    """Return the identity of a message, which the letters that are made from it share.

    A redrive begins a new identity. Properties that an application has copied from other messages
    are not part of it.
    """
    return of_message(message, message.properties()) or origin_key(message)

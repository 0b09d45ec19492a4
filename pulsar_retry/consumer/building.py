"""Building the raw message that a letter is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import _pulsar

from pulsar_retry.consumer.clock import SYSTEM
from pulsar_retry.consumer.letter import Letter


def build_letter(
    raw: Any,
    letter: Letter,
    builder: Any = None,
    clock: Callable[[], float] = SYSTEM.time,
) -> Any:
    """Return *letter* with *raw*'s payload, key, ordering key and event time, as a raw message.

    Args:
        raw: The raw message that the letter is made of.
        letter: The letter.
        builder: Builds the raw message; None: pulsar-client's own builder.
        clock: Tells the time.
    """
    builder = builder or _pulsar.MessageBuilder()
    if raw.has_null_value():
        builder.set_null_value()
    else:
        builder.content(raw.data())
    builder.properties(letter.properties)
    try:
        key, ordering_key = raw.partition_key(), raw.ordering_key()
    except UnicodeDecodeError:
        key, ordering_key = _text_or_bytes(raw.partition_key), _text_or_bytes(raw.ordering_key)
    if key:
        builder.partition_key(key)
    if ordering_key:
        builder.ordering_key(ordering_key)
    if moment := raw.event_timestamp():
        builder.event_timestamp(moment)
    if letter.delay:
        builder.deliver_at(round((clock() + letter.delay) * 1000))
    return builder.build()


def _text_or_bytes(read: Callable[[], str]) -> str | bytes:
    """Return what *read* returns; Java may have put bytes there that are no text."""
    try:
        return read()
    except UnicodeDecodeError as error:
        return error.object

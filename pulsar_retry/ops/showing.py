"""Dead letters in the form in which people and programs read them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pulsar_retry.errors import PayloadError
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.reading import LetterCodecs, LetterInPlace
from pulsar_retry.replay.redriving.judge import is_meant, key_of
from pulsar_retry.wire.dead_letter import DeadLetter
from pulsar_retry.wire.envelope import Envelope, read_envelope
from pulsar_retry.wire.payloads import value_as_json


def properties_of(raw: Any) -> dict[str, str]:
    """Return the properties of a message; none if pulsar-client cannot read them at all."""
    try:
        return dict(raw.properties())
    except UnicodeDecodeError:
        return {}


def facts_of(stored: LetterInPlace, codecs: LetterCodecs) -> dict[str, Any]:
    """Return any letter as JSON-compatible values, whichever client has written it.

    A payload that is text is under ``payload``, another one under ``payload_base64``. A message
    without a value has neither. If the letter has a schema, ``schema`` is its type, and ``value``
    the decoded payload; ``problem`` says why it could not be decoded. Times are ISO 8601, UTC.

    Args:
        stored: The letter.
        codecs: Finds its schema.
    """
    raw = stored.raw
    payload = None if raw.has_null_value() else raw.data()
    letter = DeadLetter.read(properties_of(raw), payload)
    failure = letter.failure
    return {
        "topic": stored.topic,
        "message_id": str(stored.position),
        "published": _moment(raw.publish_timestamp()),
        "event_time": _moment(raw.event_timestamp()),
        "key": key_of(raw),
        "reason": failure.reason,
        "error": failure.error,
        "message": failure.message,
        "traceback": failure.traceback,
        "fingerprint": failure.fingerprint,
        "stage": failure.stage,
        "attempt": failure.attempt,
        "failed": None if failure.when is None else failure.when.isoformat(),
        "origin_topic": failure.topic,
        "subscription": failure.subscription,
        "origin_message_id": failure.message_id,
        "redrives": letter.redrives,
        "properties": dict(letter.properties),
        **_payload(letter.payload),
        **_decoded(raw, letter.payload, codecs),
    }


def record_of(facts: Mapping[str, Any]) -> str | None:
    """Return a payload that was decoded by its schema, as JSON with indents; None if it was not."""
    return value_as_json(facts["value"]) if "value" in facts else None


def failure_of(stored: LetterInPlace) -> Envelope:
    """Return what a letter says about its failure; empty if the letter cannot be read."""
    return read_envelope(properties_of(stored.raw))


def fits(where: Filter, stored: LetterInPlace) -> bool:
    """Tell whether a letter matches; an unreadable one matches only without conditions."""
    if where.takes_all:
        return True
    try:
        properties = stored.raw.properties()
    except UnicodeDecodeError:
        return False
    return is_meant(where, stored.raw, properties, str(stored.position))


def _moment(milliseconds: int) -> str | None:
    if milliseconds <= 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return None


def _decoded(raw: Any, payload: bytes | None, codecs: LetterCodecs) -> dict[str, Any]:
    codec = codecs.of(raw)
    if codec.schema is None:
        return {}
    if payload is None:
        return {"schema": codec.schema}
    try:
        return {"schema": codec.schema, "value": codec.decode(payload)}
    except PayloadError as error:
        return {"schema": codec.schema, "problem": str(error)}


def _payload(payload: bytes | None) -> dict[str, str]:
    if payload is None:
        return {}
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}

"""A payload in a readable form: text, JSON or hex. Pure."""

from __future__ import annotations

import base64
from typing import Any, Literal

import attrs

from pulsar_retry.ops.formatting import clean
from pulsar_retry.wire.payloads import as_hex, as_json, is_text

Form = Literal["text", "json", "hex"]
FORMS: tuple[Form, ...] = ("text", "json", "hex")

#: How many bytes are shown.
MOST = 64 * 1024


@attrs.frozen
class Shown:
    """A payload in a readable form.

    Attributes:
        form: The form.
        content: The text to show.
        size: The size of the whole payload, in bytes.
        left_out: How many bytes at the end are not shown.
    """

    form: Form
    content: str
    size: int
    left_out: int


def displayed(payload: bytes, asked: str | None = None, record: str | None = None) -> Shown:
    """Return a payload in the requested form, or else in the form that fits.

    A decoded record is JSON. Without one, objects and lists are JSON, other UTF-8 is text, and
    everything else is hex. JSON is never cut: if it is too long, it is shown as text.

    Args:
        payload: The bytes.
        asked: ``text``, ``json`` or ``hex``; anything else chooses the form by the content.
        record: The payload decoded by its schema, as JSON (`ops.showing.record_of`).
    """
    if record is not None and asked not in {"hex", "text"}:
        return Shown("json", clean(record), len(payload), 0)
    if asked not in {"hex", "text"} and len(payload) <= MOST:
        laid_out = as_json(payload, any_value=asked == "json")
        if laid_out is not None:
            return Shown("json", clean(laid_out), len(payload), 0)
    head = payload[:MOST]
    form: Form = "hex" if asked == "hex" or (asked != "text" and not is_text(payload)) else "text"
    content = as_hex(head) if form == "hex" else clean(head.decode(errors="replace"))
    return Shown(form, content, len(payload), len(payload) - len(head))


def payload_of(facts: dict[str, Any]) -> bytes | None:
    """Return the payload from `facts_of`; None for a null value."""
    if "payload" in facts:
        return str(facts["payload"]).encode()
    if "payload_base64" in facts:
        return base64.b64decode(facts["payload_base64"])
    return None

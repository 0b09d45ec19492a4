"""A payload in a readable form: text, JSON or hex; and edited by hand. Pure."""

from __future__ import annotations

import base64
import json
import unicodedata
from typing import Any, Literal

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.ops.formatting import clean
from pulsar_retry.wire.payloads.readable import as_hex, as_json, is_text

Form = Literal["text", "json", "hex"]
FORMS: tuple[Form, ...] = ("text", "json", "hex")

#: How many bytes are shown.
MOST = 64 * 1024
#: The longest JSON that can be edited by hand, in characters.
MOST_EDITED = 16 * 1024


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
    content = as_hex(head) if form == "hex" else clean(_decoded(head))
    return Shown(form, content, len(payload), len(payload) - len(head))


def payload_of(facts: dict[str, Any]) -> bytes | None:
    """Return the payload from `facts_of`; None for a null value."""
    if "payload" in facts:
        return str(facts["payload"]).encode()
    if "payload_base64" in facts:
        return base64.b64decode(facts["payload_base64"])
    return None


def editable(payload: bytes | None, record: str | None) -> str | None:
    """Return a payload as JSON that a user can edit by hand; None if there is none, or too much.

    Characters that nobody sees are escaped, so that no edit changes them by accident.

    Args:
        payload: The bytes; None for a null value.
        record: The payload decoded by its schema, as in `displayed`.
    """
    text = record if record is not None or payload is None else as_json(payload)
    if text is None or len(text) > MOST_EDITED:
        return None
    return "".join(
        json.dumps(each)[1:-1] if each != "\n" and unicodedata.category(each)[0] == "C" else each
        for each in text
    )


def editable_text(payload: bytes | None) -> str | None:
    """Return a payload as text that a user can edit by hand; None if it is not, or too long.

    Text with carriage returns cannot be edited, because forms change them, nor can text with
    characters that nobody sees.
    """
    if payload is None or len(payload) > MOST_EDITED or not is_text(payload):
        return None
    text = payload.decode()
    if any(each not in "\n\t" and unicodedata.category(each)[0] == "C" for each in text):
        return None
    return text


def text_of(typed: str, before: str) -> str:
    """Return the text that replaces a whole payload; empty if nothing was changed.

    Args:
        typed: The text that a user has typed, with the line ends of a form.
        before: The text that was there, as `editable_text` returns it.
    """
    text = typed.replace("\r\n", "\n")
    return "" if text == before else text


def patch_of(typed: str, before: str) -> str:
    """Return the JSON patch that replaces a whole payload; empty if nothing was changed.

    Args:
        typed: The JSON that a user has typed.
        before: The JSON that was there, as `editable` returns it.

    Raises:
        ConfigError: this is not JSON.
    """
    try:
        values = [json.dumps(json.loads(each), sort_keys=True) for each in (typed, before)]
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"payload: expected JSON: {error}") from None
    if values[0] == values[1]:
        return ""
    return f'[{{"op": "replace", "path": "", "value": {typed.strip()}}}]'


def _decoded(payload: bytes) -> str:
    """Return text; invalid bytes, and a character that was cut at the end, are replaced."""
    return payload.decode(errors="replace")

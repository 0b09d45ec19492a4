"""A payload in a readable form: text, JSON or hex. Pure."""

from __future__ import annotations

from typing import Literal

import attrs

from pulsar_retry.ops.formatting import clean
from pulsar_retry.wire.payloads.readable import as_hex, as_json, is_text

Form = Literal["text", "json", "hex"]
FORMS: tuple[Form, ...] = ("text", "json", "hex")

#: How many bytes are shown.
MOST = 64 * 1024

#: Backslashes before an escape, and a run of escapes: some characters take two.
_ESCAPES = re.compile(r"(?P<slashes>\\*)(?P<escapes>(?:\\u[0-9a-fA-F]{4})+)")


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


def is_text(payload: bytes) -> bool:
    """Tell whether a payload is UTF-8."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def as_json(payload: bytes, *, any_value: bool = True) -> str | None:
    r"""Return JSON with line breaks, indents and readable characters; None if it is not JSON.

    Duplicate keys and long numbers are not changed, because they may be the reason of a failure.
    Escapes of printable characters, such as ``\u00eb``, are shown as these characters.

    Args:
        payload: The bytes.
        any_value: Accept numbers, strings, true, false and null, too.
    """
    try:
        text = payload.decode()
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not any_value and not isinstance(value, dict | list):
        return None
    return clean("".join(_laid_out(text)))


def as_hex(payload: bytes) -> str:
    """Return lines of 16 bytes: the offset, the bytes, and the same bytes as ASCII."""
    lines = []
    for offset in range(0, len(payload), _WIDTH):
        row = payload[offset : offset + _WIDTH]
        ascii_ = "".join(chr(each) if 0x20 <= each < 0x7F else "." for each in row)  # noqa: PLR2004
        lines.append(f"{offset:08x}  {row.hex(' '):<{_WIDTH * 3 - 1}}  {ascii_}")
    return "\n".join(lines)


def _decoded(payload: bytes) -> str:
    """Return text; invalid bytes, and a character that was cut at the end, are replaced."""
    return payload.decode(errors="replace")


def _laid_out(text: str) -> Iterator[str]:
    parts = [_readable(each) for each in _TOKEN.findall(text) if not each.isspace()]
    depth = 0
    for at, part in enumerate(parts):
        following = parts[at + 1] if at + 1 < len(parts) else ""
        if part in {"{", "["}:
            depth += 1
            yield part if following in {"}", "]"} else part + _new_line(depth)
        elif part in {"}", "]"}:
            depth -= 1
            yield part if at and parts[at - 1] in {"{", "["} else _new_line(depth) + part
        elif part == ",":
            yield part + _new_line(depth)
        elif part == ":":
            yield ": "
        else:
            yield part


def _readable(token: str) -> str:
    """Return a token in which the escapes of printable characters are replaced."""
    return _ESCAPES.sub(_character, token) if "\\u" in token else token


def _character(match: re.Match[str]) -> str:
    escapes: str = match["escapes"]
    if len(match["slashes"]) % 2:  # the first backslash is escaped itself
        return match[0]
    try:
        text: str = json.loads(f'"{escapes}"')
        text.encode()
    except (ValueError, UnicodeEncodeError):  # half of a pair
        return match[0]
    return match["slashes"] + "".join(
        each if ord(each) > 0x9F and each.isprintable() else json.dumps(each)[1:-1]  # noqa: PLR2004 - the end of C1
        for each in text
    )


def _new_line(depth: int) -> str:
    # The limit keeps lines short for JSON with thousands of levels.
    return "\n" + "  " * min(depth, 40)

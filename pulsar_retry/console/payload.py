"""A payload as people read it: text, JSON or hex. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Literal

import attrs

from pulsar_retry.ops.formatting import clean

Form = Literal["text", "json", "hex"]
FORMS: tuple[Form, ...] = ("text", "json", "hex")

#: Bytes that are shown.
MOST = 64 * 1024
_WIDTH = 16
#: A string, a bracket or comma or colon, white space, or whatever else a value is made of.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|\s+|[^\s{}\[\],:"]+')


@attrs.frozen
class Shown:
    """A payload to be looked at.

    Attributes:
        form: How it is shown.
        content: What is shown.
        size: Bytes of the whole payload.
        left_out: Bytes at its end that are not shown.
    """

    form: Form
    content: str
    size: int
    left_out: int


def displayed(payload: bytes, asked: str | None = None) -> Shown:
    """Return a payload as it was asked for; where that cannot be, as what it is.

    Objects and lists are JSON, what else is UTF-8 is text, and all else is hex. JSON is shown only
    whole: a long one is text.

    Args:
        payload: The bytes.
        asked: ``text``, ``json`` or ``hex``; all else: as what it is.
    """
    if asked not in {"hex", "text"} and len(payload) <= MOST:
        laid_out = as_json(payload, any_value=asked == "json")
        if laid_out is not None:
            return Shown("json", laid_out, len(payload), 0)
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
    """Return JSON with line breaks and indents, every token as it was sent; None: it is none.

    Keys that come twice, long numbers and escapes stay as they are: whoever looks for the reason of
    a failure has to see them.

    Args:
        payload: The bytes.
        any_value: Take numbers, strings, true, false and null, too.
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
    """Return lines of 16 bytes: the offset, each byte, and what of it is ASCII."""
    lines = []
    for offset in range(0, len(payload), _WIDTH):
        row = payload[offset : offset + _WIDTH]
        ascii_ = "".join(chr(each) if 0x20 <= each < 0x7F else "." for each in row)  # noqa: PLR2004
        lines.append(f"{offset:08x}  {row.hex(' '):<{_WIDTH * 3 - 1}}  {ascii_}")
    return "\n".join(lines)


def _decoded(payload: bytes) -> str:
    """Return text; a character that was cut at the end, and what is none, is a replacement."""
    return payload.decode(errors="replace")


def _laid_out(text: str) -> Iterator[str]:
    parts = [each for each in _TOKEN.findall(text) if not each.isspace()]
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


def _new_line(depth: int) -> str:
    # Whoever nests a thousand levels deep gets no kilobytes of blanks on each line.
    return "\n" + "  " * min(depth, 40)

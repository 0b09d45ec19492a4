"""Payloads as text for people: JSON with indents, or hex. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

#: How many bytes a line of `as_hex` has.
_WIDTH = 16
#: A string; a bracket, comma or colon; white space; or another value.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|\s+|[^\s{}\[\],:"]+')

#: Backslashes before an escape, and a run of escapes: some characters take two.
_ESCAPES = re.compile(r"(?P<slashes>\\*)(?P<escapes>(?:\\u[0-9a-fA-F]{4})+)")


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
    return "".join(_laid_out(text))


def value_as_json(value: Any) -> str:
    """Return a decoded value as JSON with line breaks and indents."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def as_hex(payload: bytes) -> str:
    """Return lines of 16 bytes: the offset, the bytes, and the same bytes as ASCII."""
    lines = []
    for offset in range(0, len(payload), _WIDTH):
        row = payload[offset : offset + _WIDTH]
        ascii_ = "".join(chr(each) if 0x20 <= each < 0x7F else "." for each in row)  # noqa: PLR2004
        lines.append(f"{offset:08x}  {row.hex(' '):<{_WIDTH * 3 - 1}}  {ascii_}")
    return "\n".join(lines)


def _laid_out(text: str) -> Iterator[str]:
    parts = [_ESCAPES.sub(_character, each) for each in _TOKEN.findall(text) if not each.isspace()]
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


def _character(match: re.Match[str]) -> str:
    """Return escapes, with those of printable characters replaced."""
    escapes: str = match["escapes"]
    if len(match["slashes"]) % 2:  # the first backslash is escaped itself
        return match[0]
    try:
        text: str = json.loads(f'"{escapes}"')
        text.encode()
    except (ValueError, UnicodeEncodeError):  # half of a pair
        return match[0]
    return match["slashes"] + "".join(
        each if not each.isascii() and each.isprintable() else json.dumps(each)[1:-1]
        for each in text
    )


def _new_line(depth: int) -> str:
    # The limit keeps lines short for JSON with thousands of levels.
    return "\n" + "  " * min(depth, 40)

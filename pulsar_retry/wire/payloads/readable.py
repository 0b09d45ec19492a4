"""Payloads as text for people: JSON with indents, or hex. Pure."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

#: How many bytes a line of `as_hex` has.
_WIDTH = 16


def is_text(payload: bytes) -> bool:
    """Tell whether a payload is UTF-8."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def as_json(payload: bytes, *, any_value: bool = True) -> str | None:
    """Return JSON with line breaks, indents and readable characters; None if it is not JSON.

    JSON that this would change stays as it was written: a key that occurs twice, or the digits of a
    number, may be the reason of a failure.

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
    return value_as_json(value) if stays(text, value) else text


def value_as_json(value: Any) -> str:
    """Return a decoded value as JSON with line breaks and indents."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def stays(text: str | bytes, value: Any) -> bool:
    """Tell whether JSON says the same if the *value* that was read from it is written again."""
    try:
        written = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2).encode()
        return bool(_exactly(text) == _exactly(written))
    except (ValueError, RecursionError):  # NaN, half of a pair of surrogates, or too many levels
        return False


def _exactly(text: str | bytes) -> Any:
    """Return JSON with all digits of its numbers, and all of its keys."""
    return json.loads(text, parse_float=Decimal, object_pairs_hook=_with_repeated_keys)


def _with_repeated_keys(pairs: list[tuple[str, Any]]) -> Any:
    found = dict(pairs)
    return found if len(found) == len(pairs) else pairs


def as_hex(payload: bytes) -> str:
    """Return lines of 16 bytes: the offset, the bytes, and the same bytes as ASCII."""
    lines = []
    for offset in range(0, len(payload), _WIDTH):
        row = payload[offset : offset + _WIDTH]
        ascii_ = "".join(chr(each) if 0x20 <= each < 0x7F else "." for each in row)  # noqa: PLR2004
        lines.append(f"{offset:08x}  {row.hex(' '):<{_WIDTH * 3 - 1}}  {ascii_}")
    return "\n".join(lines)

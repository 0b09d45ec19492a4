"""Texts for operators: ages, times, and safe forms of foreign texts."""

from __future__ import annotations

import json
import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Any

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import with_unit

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_SHORT = 60
#: The input that `moment` accepts.
MOMENT = "a time such as 2026-01-31T12:00:00Z (UTC without a zone), or how long ago: 30m, 2h, 7d"


def clean(text: str) -> str:
    """Return *text* without characters that control a terminal or mislead the reader."""
    return "".join(
        each if each in "\n\t" or unicodedata.category(each)[0] != "C" else "\ufffd"
        for each in text
    )


def json_text(facts: Any, indent: int | None = None) -> str:
    """Return JSON. Half of a pair of surrogates, which JSON can hold and UTF-8 cannot, is escaped.

    Args:
        facts: JSON-compatible values.
        indent: The number of spaces for each level; None: one line.
    """
    text = json.dumps(facts, ensure_ascii=False, indent=indent)
    return text.encode("utf-8", "backslashreplace").decode()


def one_line(text: str) -> str:
    """Return a clean text without line breaks and tabs."""
    return clean(text).replace("\n", " ").replace("\t", " ")


def short(text: str | None, width: int = _SHORT) -> str:
    """Return the beginning of the first line."""
    first = (text or "").strip().split("\n", 1)[0]
    return first if len(first) <= width else first[: width - 1] + "…"


def words_of_age(age: float | None) -> str:
    """Return an age in the largest unit that fits, such as ``3 h``."""
    if age is None:
        return ""
    for size, unit in _UNITS:
        if age >= size:
            return f"{age / size:.0f} {unit}"
    return "0 s"


def name_and_value(argument: str, text: str) -> tuple[str, str]:
    """Read ``NAME=VALUE``.

    Raises:
        ConfigError: the text has no name, or no equals sign.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigError.bad(argument, text, "NAME=VALUE")
    return name, value


def moment(argument: str, text: str | None) -> datetime | None:
    """Read a time, or how long ago it was. A time without a time zone is UTC.

    Raises:
        ConfigError: the text is neither.
    """
    if text is None:
        return None
    ago = with_unit(text)
    try:
        if ago is not None:
            return datetime.now(UTC) - timedelta(seconds=ago)
        when = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ConfigError.bad(argument, text, MOMENT) from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)

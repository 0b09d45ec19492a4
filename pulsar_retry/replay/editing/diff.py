"""What an edit changes in a letter, as text for people. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import attrs

from pulsar_retry.errors import PayloadError
from pulsar_retry.replay.editing.content import LetterContent
from pulsar_retry.wire.payloads.readable import as_hex, value_as_json

#: How many bytes of a binary payload are compared, and how many lines of a diff are shown, and of
#: how many characters.
_MOST_BYTES, _MOST_LINES, _LONGEST = 1024, 200, 2000


@attrs.frozen
class LetterDiff:
    """The difference between a letter and its edited copy.

    Attributes:
        message_id: The id of the letter.
        text: A unified diff; lines of context begin with a space, others with ``-`` or ``+``.
    """

    message_id: str
    text: str


def diff_of(before: LetterContent, after: LetterContent) -> LetterDiff:
    """Return the difference of payload, key and properties of two letters."""
    lines = [
        *_unified("payload", *_payloads(before, after)),
        *_unified("key", [str(before.key or "")], [str(after.key or "")]),
        *_unified("properties", _lines_of(before), _lines_of(after)),
    ]
    if len(lines) > _MOST_LINES:
        more = len(lines) - _MOST_LINES
        lines = [*lines[:_MOST_LINES], f"… {more} more lines"]
    return LetterDiff(before.message_id, "\n".join(map(_cut, lines)))


def _cut(line: str) -> str:
    left = len(line) - _LONGEST
    return line if left <= 0 else f"{line[:_LONGEST]}… {left} more characters"


def _lines_of(letter: LetterContent) -> list[str]:
    return [f"{name} = {text}" for name, text in sorted(letter.properties.items())]


def _payloads(before: LetterContent, after: LetterContent) -> tuple[list[str], list[str]]:
    """Return the lines of two payloads: as JSON, as text, or as sizes and bytes."""
    try:
        return _json_lines(before), _json_lines(after)
    except PayloadError:
        pass
    texts = [each.payload or b"" for each in (before, after)]
    try:
        first, second = (each.decode().splitlines() for each in texts)
    except UnicodeDecodeError:
        first, second = (
            [f"{len(each)} bytes", *as_hex(each[:_MOST_BYTES]).splitlines()] for each in texts
        )
    return first, second


def _json_lines(letter: LetterContent) -> list[str]:
    return value_as_json(letter.value).splitlines()


def _unified(what: str, before: list[str], after: list[str]) -> Iterator[str]:
    found = difflib.unified_diff(before, after, f"{what} before", f"{what} after", lineterm="", n=2)
    return (each for each in found if not each.startswith("@@"))

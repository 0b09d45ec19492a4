"""Patches of JSON payloads: what a redrive changes in letters, and how a dry run shows it.

Letters without a schema, or with the schema JSON, can be patched.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from pulsar_retry.errors import ConfigError, PayloadError
from pulsar_retry.wire.payloads import PayloadCodec, stays, value_as_json

#: A JSON merge patch, or the text of one.
PatchLike = Mapping[str, Any] | str

_PATCH = "a JSON merge patch (an object, RFC 7396)"
#: Of how many letters a dry run shows what changes.
DIFFS = 3
#: How many lines of a diff are shown, and of how many characters.
_MOST_LINES, _LONGEST = 200, 2000


@attrs.frozen
class LetterDiff:
    """The difference that a patch makes to the payload of a letter.

    Attributes:
        message_id: The id of the letter.
        text: A unified diff; lines of context begin with a space, others with ``-`` or ``+``.
    """

    message_id: str
    text: str


def checked_patch(patch: PatchLike) -> Mapping[str, Any]:
    """Return a patch.

    Raises:
        ConfigError: it is no patch.
    """
    try:
        read: Any = json.loads(patch) if isinstance(patch, str) else patch
        json.dumps(read)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"patch: expected {_PATCH}: {error}") from None
    if not isinstance(read, Mapping):
        raise ConfigError.bad("patch", patch, _PATCH)
    return read


def patched(patch: Mapping[str, Any], payload: bytes | None, schema: str | None) -> bytes:
    """Return the payload that a letter gets: the same bytes if the patch changes nothing.

    Args:
        patch: What to change.
        payload: The payload of the letter; None for a null value.
        schema: The type of its schema; None if it has none.

    Raises:
        PayloadError: the payload is not JSON, or writing it again would change also what the
            patch does not, such as digits of a number that Python does not keep.
    """
    if payload is None:
        raise PayloadError("the letter has a null value")
    if schema not in {None, "JSON"}:
        raise PayloadError(f"a patch changes JSON, and the letter has the schema {schema}")
    before = _read(payload)
    after = merged(patch, before)
    if json.dumps(before) == json.dumps(after):  # 1, 1.0 and true are equal in Python
        return payload
    if not stays(payload, before):
        raise PayloadError(
            "writing this payload again would change more than the patch does: digits of a "
            "number, or a key that occurs twice"
        )
    return _written(after)


def diff_of(message_id: str, before: bytes, after: bytes) -> LetterDiff:
    """Return the difference of two JSON payloads."""
    old, new = (value_as_json(json.loads(each)).splitlines() for each in (before, after))
    found = difflib.unified_diff(old, new, "payload before", "payload after", lineterm="", n=2)
    lines = [each for each in found if not each.startswith("@@")]
    if len(lines) > _MOST_LINES:
        more = len(lines) - _MOST_LINES
        lines = [*lines[:_MOST_LINES], f"… {more} more lines"]
    return LetterDiff(message_id, "\n".join(map(_cut, lines)))


class Patcher:
    """Patches the letters of one redrive, or of one dry run.

    Attributes:
        diffs: What the patch changes in the first letters.
    """

    def __init__(self, patch: Mapping[str, Any], codec_of: Callable[[Any], PayloadCodec]) -> None:
        """Prepare; *codec_of* returns the codec of a raw message."""
        self._patch, self._codec_of = patch, codec_of
        self.diffs: list[LetterDiff] = []

    def payload(self, raw: Any, position: str) -> bytes | None:
        """Return the payload that a raw letter gets; None: the patch changes nothing.

        Raises:
            PayloadError: the letter cannot be patched.
        """
        before = None if raw.has_null_value() else raw.data()
        after = patched(self._patch, before, self._codec_of(raw).schema)
        if after == before:
            return None
        if before is not None and len(self.diffs) < DIFFS:
            self.diffs.append(diff_of(position, before, after))
        return after


def merged(patch: Any, value: Any) -> Any:
    """Return *value* with a JSON merge patch applied, as the pseudo code of RFC 7396 does it."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for name, each in patch.items():
        if each is None:
            result.pop(name, None)
        else:
            result[name] = merged(each, result.get(name))
    return result


def _read(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the payload is not JSON: {error}") from None


def _written(value: Any) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode()
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the value cannot be written as JSON: {error}") from None


def _cut(line: str) -> str:
    left = len(line) - _LONGEST
    return line if left <= 0 else f"{line[:_LONGEST]}… {left} more characters"

"""The text forms of dead letters that `dlq` prints."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable
from typing import Any

from pulsar_retry.cli._common.output import table
from pulsar_retry.ops.formatting import clean, one_line, short, words_of_age
from pulsar_retry.ops.showing import record_of
from pulsar_retry.replay.redriving.report import Group
from pulsar_retry.wire.payloads import as_hex, as_json

__all__ = ["full", "line", "payload_line", "show_groups"]

#: The longest text of an error, and of a payload on one line, in characters.
_MESSAGE, _LINE = 56, 200


def show_groups(groups: Iterable[Group]) -> None:
    """Print groups of letters: a row for each, and below it the id and the error of one letter."""
    names = ["letters", "oldest", "newest", "reason", "error", "fingerprint"]
    found, now = list(groups), time.time()
    rows = [
        (
            each.count,
            *(words_of_age(max(0.0, now - at)) for at in (each.oldest, each.newest)),
            *(short(text) for text in (each.reason, each.error, each.fingerprint)),
        )
        for each in found
    ]
    samples = [
        f"{next(iter(each.samples), '')}  {short(each.message, _MESSAGE)}".rstrip()
        for each in found
    ]
    table(names, rows, ["sample", *samples])


def payload_line(facts: dict[str, Any]) -> str:
    """Return a letter's id and its payload, on one line."""
    return one_line(f"  {facts['message_id']}  {short(_in_short(facts), _LINE)}")


def line(facts: dict[str, Any]) -> str:
    """Return a letter on one line."""
    said = (facts["reason"], facts["error"], facts["message"])
    why = ": ".join(short(each) for each in said if each)
    key = f" key={short(facts['key'])}" if facts["key"] else ""
    return (
        f"{facts['published']}  {facts['message_id']}{key}  {why or '-'}  {short(_in_short(facts))}"
    )


def full(facts: dict[str, Any]) -> str:
    """Return a letter with everything that is known about it."""
    plain = {name: each for name, each in facts.items() if name not in _SHOWN_SEPARATELY}
    lines = [f"{name:<18} {_value(str(each))}" for name, each in plain.items() if each is not None]
    for name, text in facts["properties"].items():
        lines.append(f"property {one_line(name)} = {_value(text)}")
    if facts["traceback"]:
        lines += ["", clean(facts["traceback"]).rstrip()]
    return "\n".join([*lines, "", *_payload(facts)])


def _value(text: str) -> str:
    """Return a text whose other lines cannot be taken for lines of ours."""
    return clean(text).replace("\n", "\n    ")


def _payload(facts: dict[str, Any]) -> list[str]:
    """Return a payload by its schema, as JSON, as text, or as the beginning of its bytes in hex."""
    record = record_of(facts)
    if record is not None:
        return [f"payload ({facts['schema']}):", clean(record)]
    why = [f"{facts['schema']}: {clean(facts['problem'])}"] if "problem" in facts else []
    if "payload" in facts:
        text: str = facts["payload"]
        return [*why, "payload:", clean(as_json(text.encode(), any_value=False) or text)]
    if "payload_base64" not in facts:
        return ["no payload: a null value"]
    payload = base64.b64decode(facts["payload_base64"])
    more = f", the first {_MOST}" if len(payload) > _MOST else ""
    return [*why, f"payload (not text), {len(payload)} bytes{more}:", as_hex(payload[:_MOST])]


def _in_short(facts: dict[str, Any]) -> str:
    if "value" in facts:
        return json.dumps(facts["value"], ensure_ascii=False)
    if "payload" in facts:
        return str(facts["payload"])
    return "0x" + base64.b64decode(facts.get("payload_base64", ""))[:_SHORT].hex()


#: How many bytes of a payload that is not text are shown, and how many on one line.
_MOST, _SHORT = 4096, 32

_SHOWN_SEPARATELY = frozenset(
    {"properties", "traceback", "payload", "payload_base64", "schema", "value", "problem"}
)

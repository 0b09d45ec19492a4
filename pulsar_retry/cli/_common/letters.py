"""The text forms of dead letters that `dlq` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pulsar_retry.ops.formatting import clean, short
from pulsar_retry.replay.redriving.report import Group

__all__ = ["full", "line", "rows_of_groups"]


def rows_of_groups(groups: Iterable[Group]) -> list[tuple[object, ...]]:
    """Return the rows of a table."""
    return [
        (
            each.count,
            each.reason,
            each.error,
            each.fingerprint,
            " ".join(each.samples),
            short(each.message),
        )
        for each in groups
    ]


def line(facts: dict[str, Any]) -> str:
    """Return a letter on one line."""
    said = (facts["reason"], facts["error"], facts["message"])
    why = ": ".join(short(each) for each in said if each)
    payload = facts.get("payload") or facts.get("payload_base64") or ""
    key = f" key={facts['key']}" if facts["key"] else ""
    return f"{facts['published']}  {facts['message_id']}{key}  {why or '-'}  {short(payload)}"


def full(facts: dict[str, Any]) -> str:
    """Return a letter with everything that is known about it."""
    plain = {name: each for name, each in facts.items() if name not in _SHOWN_SEPARATELY}
    lines = [f"{name:<18} {clean(str(each))}" for name, each in plain.items() if each is not None]
    for name, text in facts["properties"].items():
        lines.append(f"property {clean(name)} = {clean(text)}")
    if facts["traceback"]:
        lines += ["", clean(facts["traceback"]).rstrip()]
    if "payload" in facts:
        lines += ["", "payload:", clean(facts["payload"])]
    elif "payload_base64" in facts:
        lines += ["", "payload (not text), in base64:", facts["payload_base64"]]
    else:
        lines += ["", "no payload: a null value"]
    return "\n".join(lines)


_SHOWN_SEPARATELY = frozenset({"properties", "traceback", "payload", "payload_base64"})

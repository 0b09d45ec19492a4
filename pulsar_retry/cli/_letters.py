"""Dead letters as `dlq` prints and exports them."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

from pulsar_retry.errors import ConfigError, PulsarRetryError
from pulsar_retry.replay.reading import Stored
from pulsar_retry.replay.redriven import Group
from pulsar_retry.replay.showing import facts_of
from pulsar_retry.replay.words import clean, short

__all__ = ["export", "full", "line", "rows_of_groups"]

#: Rows of a Parquet file that are written at a time.
_ROWS = 1_000


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
    """Return a letter with everything that is known of it."""
    plain = {name: each for name, each in facts.items() if name not in _APART}
    lines = [f"{name:<18} {clean(str(each))}" for name, each in plain.items() if each is not None]
    for name, text in facts["properties"].items():
        lines.append(f"property {clean(name)} = {clean(text)}")
    if facts["traceback"]:
        lines += ["", clean(facts["traceback"]).rstrip()]
    if "payload" in facts:
        lines += ["", "payload:", clean(facts["payload"])]
    elif "payload_base64" in facts:
        lines += ["", "payload, no text, in base64:", facts["payload_base64"]]
    else:
        lines += ["", "no payload: a null value"]
    return "\n".join(lines)


_APART = frozenset({"properties", "traceback", "payload", "payload_base64"})


# -- exporting ------------------------------------------------------------------------------------


def export(
    letters: Iterable[Stored],
    output: str | None,
    limit: int | None,
    tell: Callable[[float, float | None], None],
) -> int:
    """Write *letters* to *output*, None: to standard output; return how many there are."""
    counted = _counted(islice(letters, limit), limit, tell)
    if output is None:
        return _write_lines(sys.stdout, counted)
    if output.endswith(".parquet"):
        _arrow()  # before anything is read
        with _complete(output) as path:
            return _write_parquet(counted, path)
    with _complete(output) as path, path.open("w", encoding="utf-8") as file:
        return _write_lines(file, counted)


def _counted(
    letters: Iterable[Stored], limit: int | None, tell: Callable[[float, float | None], None]
) -> Iterator[Stored]:
    for number, each in enumerate(letters, 1):
        if number % 500 == 0:
            tell(number, limit)
        yield each


def _write_lines(file: IO[str], letters: Iterable[Stored]) -> int:
    count = 0
    for count, each in enumerate(letters, 1):  # noqa: B007 - it is what is returned
        file.write(json.dumps(facts_of(each), ensure_ascii=False) + "\n")
    return count


def _write_parquet(letters: Iterator[Stored], path: Path) -> int:
    arrow, parquet = _arrow()
    texts = (*_TEXTS, "properties")
    schema = arrow.schema(
        [
            *((name, arrow.string()) for name in texts),
            *((name, arrow.int64()) for name in _NUMBERS),
            ("payload", arrow.binary()),
        ]
    )
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        while chunk := [_row(each) for each in islice(letters, _ROWS)]:
            writer.write_table(arrow.Table.from_pylist(chunk, schema=schema))
            count += len(chunk)
    return count


_NUMBERS = ("attempt", "redrives")
_TEXTS = (
    *("topic", "message_id", "published", "event_time", "key", "reason", "error", "message"),
    *("traceback", "fingerprint", "stage", "failed", "origin_topic", "subscription"),
    "origin_message_id",
)


def _row(stored: Stored) -> dict[str, Any]:
    facts = facts_of(stored)
    row = {name: facts[name] for name in (*_TEXTS, *_NUMBERS)}
    row["properties"] = json.dumps(facts["properties"], ensure_ascii=False)
    row["payload"] = None if stored.raw.has_null_value() else stored.raw.data()
    return row


def _arrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise ConfigError("Parquet needs: pip install pyarrow") from None


@contextlib.contextmanager
def _complete(output: str) -> Iterator[Path]:
    """Give a file beside *output* that becomes it when everything is written."""
    target = Path(output)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise PulsarRetryError(f"{output} cannot be written: {error}") from None
    os.close(handle)
    path = Path(name)
    try:
        yield path
        path.replace(target)
    finally:
        path.unlink(missing_ok=True)

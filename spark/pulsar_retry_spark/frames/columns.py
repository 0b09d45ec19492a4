"""The columns of failed rows: their names, pulsar-spark's names for them, and their types. Pure.

docs/reference/spark.md says what each column is. Only ``payload`` is required. For any other
column, a null is the same as no such column. Columns that a source has added say where the row came
from, and never where it goes.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.options import DEAD_LETTER, LETTER_OPTION, RETRY, SinkOptions
from pulsar_retry_spark.parsing import unknown_name

_log = logging.getLogger("pulsar_retry.spark")

_TEXT = ("string",)
_BYTES = ("binary", "string")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_TIME = ("timestamp",)  # one without a zone would depend on the session's, which no worker knows

#: The columns, and the types that each may have, by Spark's names.
COLUMNS: dict[str, tuple[str, ...]] = {
    "payload": _BYTES,
    "key": _BYTES,
    "ordering_key": _BYTES,
    "action": _TEXT,
    "target_topic": _TEXT,
    "reason": _TEXT,
    "error": _TEXT,
    "details": _TEXT,
    "stage": _TEXT,
    "rule": ("string", "array<string>"),
    "retryable": ("boolean",),
    "attempt": _WHOLE,
    "delay_ms": _WHOLE,
    "not_before": _TIME,
    "event_time": (*_TIME, "bigint"),
    "origin_topic": _TEXT,
    "origin_message_id": ("string", "binary"),  # pulsar-spark reads it as bytes
    "source": ("struct", "string"),  # a string is JSON
    "headers": ("map<string,string>",),
    "dedupe_id": _TEXT,
    # The source adds these; the sink accepts them so that its rows can be written again.
    "kind": _TEXT,
    "message_id": _TEXT,
    "publish_time": _TIME,
    "topic": _TEXT,
    "schema_version": ("bigint",),
}

#: Rows that have all of these were read by this package's source.
READ_BACK = frozenset({"kind", "message_id", "publish_time"})

#: The columns that only such rows have.
_OF_READING = READ_BACK | {"topic", "schema_version"}

#: pulsar-spark's names.
ALIASES = {
    "__eventtime": "event_time",
    "__key": "key",
    "__messageid": "origin_message_id",
    "__messageproperties": "headers",
    "__topic": "origin_topic",
    "value": "payload",
}

#: Columns that pulsar-spark adds: a column of our name wins over them, and so does a header.
_OF_SOURCES = frozenset({"__topic", "__messageid"})

#: Not written, because a letter has no property for the first publish time.
_IGNORED = "__publishtime"


_COLLATION: Final = re.compile(r" collate \w+", re.IGNORECASE)


@attrs.frozen
class Columns:
    """Which column of a frame is which.

    Attributes:
        known: By our name, the position of each column.
        ignored: The names of columns that are not written.
        of_source: The columns in `known` that a source has added; the row's headers win over them.
    """

    known: Mapping[str, int]
    ignored: tuple[str, ...] = ()
    of_source: frozenset[str] = frozenset()

    @property
    def read_back(self) -> bool:
        """Whether the rows were written before, and were read by this package."""
        return self.known.keys() >= READ_BACK

    @property
    def has_schemas(self) -> bool:
        """Whether rows name the versions of the schemas that they were written with."""
        return self.known.keys() >= {"topic", "schema_version"}

    @classmethod
    def of(cls, names: Iterable[str]) -> Columns:
        """Find the columns among *names*, in any case.

        Raises:
            ConfigError: a column is unknown, two columns are the same, or there is no payload.
        """
        known: dict[str, int] = {}
        ignored: list[str] = []
        of_source: set[str] = set()
        names = list(names)
        present = {name.lower() for name in names}
        for position, name in enumerate(names):
            lower = name.lower()
            ours = ALIASES.get(lower, lower)
            if lower == _IGNORED or (lower in _OF_SOURCES and ours in present):
                ignored.append(name)
            elif ours in known:
                raise ConfigError(f"column {name!r}: expected only one column for {ours}")
            elif ours not in COLUMNS:
                raise ConfigError(unknown_name("column", name, (*COLUMNS, *ALIASES)))
            elif ours in _OF_READING and not present >= READ_BACK:
                raise ConfigError(
                    f"unknown column {name!r}: {', '.join(sorted(_OF_READING))} are accepted only "
                    "together, as the source gives them"
                )
            else:
                known[ours] = position
                if lower in _OF_SOURCES:
                    of_source.add(ours)
        if "payload" not in known:
            raise ConfigError(
                "no column 'payload': expected one of type binary or string (or a column 'value')"
            )
        return cls(known, tuple(ignored), frozenset(of_source))


def warn_of(columns: Columns, options: SinkOptions) -> None:
    """Log a warning, once for each, about columns and options that may surprise the user."""
    if options.initial_subscription_name is None:
        _warn_once(
            "initial_subscription_name=none creates no subscription: if you have not created one "
            "on the retry and dead-letter topics, a broker with default settings deletes these "
            "topics with all rows after a minute"
        )
    elif options.targets.retry is not None and options.targets.subscription is None:
        _warn_once(
            "there is no option subscription, so no subscription is created on "
            f"{options.targets.retry}: if you have not created one, a broker with default settings "
            "deletes the topic after a minute"
        )
    if columns.ignored:
        _warn_once(f"the columns {', '.join(columns.ignored)} are not written")


@functools.cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)


def check_schema(schema: Any, options: SinkOptions) -> Columns:
    """Check a frame's schema, a `pyspark.sql.types.StructType`, on the driver.

    Raises:
        ConfigError: a column is unknown, missing, of a wrong type, or contradicts the options.
    """
    fields = schema.fields
    columns = Columns.of(each.name for each in fields)
    for ours, position in columns.known.items():
        _check_type(fields[position], COLUMNS[ours])
    _check_targets(columns, options)
    return columns


def _check_type(field: Any, accepted: tuple[str, ...]) -> None:
    kind = field.dataType.simpleString()
    # A collation makes no difference here; an untyped null is allowed everywhere.
    word = _COLLATION.sub("", kind)
    if word in {*accepted, "void"} or ("struct" in accepted and _is_plain(field.dataType)):
        return
    if word.startswith("struct<") and "struct" in accepted:
        accepted = ("a struct of texts, whole numbers and booleans", "its to_json")
    raise ConfigError(f"column {field.name!r} is {kind}: expected {' or '.join(accepted)}")


def _is_plain(kind: Any) -> bool:
    """Return whether *kind* is a struct of which Spark and Python make the same JSON."""
    fields = getattr(kind, "fields", None)
    plain = {*_TEXT, *_WHOLE, "boolean", "void"}
    return fields is not None and all(
        _COLLATION.sub("", each.dataType.simpleString()) in plain for each in fields
    )


def _check_targets(columns: Columns, options: SinkOptions) -> None:
    """Refuse a frame whose rows have no target topic, as far as that is known in advance."""
    if "target_topic" in columns.known:
        return
    retry, dead_letter = options.targets.retry, options.targets.dead_letter
    if retry is None and dead_letter is None:
        raise ConfigError(
            "topic=None: expected topic with subscription, "
            f"{' with '.join(LETTER_OPTION.values())}, or a column 'target_topic'"
        )
    if columns.known.keys() & {"action", "retryable", "attempt", "headers"}:
        return
    if retry is None and options.max_attempts > 1:
        raise ConfigError.bad(
            LETTER_OPTION[RETRY],
            None,
            "a topic, because no column tells which rows to retry; or max_attempts=1, which makes "
            "all of them dead letters",
        )
    if dead_letter is None and options.max_attempts == 1:
        accepted = "a topic, because max_attempts=1 makes all rows dead letters"
        raise ConfigError.bad(LETTER_OPTION[DEAD_LETTER], None, accepted)

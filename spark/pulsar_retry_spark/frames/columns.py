"""The columns of failed rows: their names, other systems' names for them, and their types. Pure.

Only ``payload`` is required. For any other column, a null is the same as no such column.

| column | type | meaning |
|---|---|---|
| payload | binary, string | the payload of the message; null for a tombstone |
| key | string, binary | the message's key |
| ordering_key | string, binary | its ordering key; Key_Shared subscriptions prefer it to the key |
| action | string | ``retry`` or ``dead_letter``; null: ``retryable`` and ``attempt`` decide |
| target_topic | string | the topic to write to, instead of the subscription's topics |
| reason, stage | string | why and where the row failed, in a word |
| error, details | string | the error's type or condition, and its text |
| rule | string, array of string | the rules that the row broke |
| retryable | boolean | false sends the row to the dead-letter topic |
| attempt | integer | the attempt that failed, from 1; with 0, a row starts again |
| delay_ms, not_before | integer, timestamp | when a retried row comes (``not_before`` wins) |
| event_time | timestamp, integer | when the event happened (an integer is ms since 1970) |
| origin_topic, origin_message_id | string | the topic and message that the row came from |
| source | struct, string | its origin in files, tables and other systems; a string is JSON |
| headers | map of string, Kafka's array | the message's properties |
| dedupe_id | string | equal for equal rows |
| schema_version | integer | with ``topic``: the schema of a row that the source has read |

Columns that a source has added say where the row came from, and never where it goes: Kafka's
`topic`, `partition` and `offset`, pulsar-spark's `__topic` and `__messageId`, any other `topic`.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Container, Iterable, Mapping
from typing import Any, Final, Protocol

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.wire.properties import FAILURE, RESERVED_PROPERTIES
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.parsing import unknown_name

_log = logging.getLogger("pulsar_retry.spark")

_TEXT = ("string",)
_BYTES = ("binary", "string")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_TIME = ("timestamp", "timestamp_ntz")

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
    # Spark's Kafka source has the second type.
    "headers": ("map<string,string>", "array<struct<key:string,value:binary>>"),
    "dedupe_id": _TEXT,
    # The source adds these; the sink accepts them so that its rows can be written again.
    "kind": _TEXT,
    "message_id": _TEXT,
    "publish_time": _TIME,
    "topic": _TEXT,
    "schema_version": ("bigint",),
}

#: Rows that have all of these were read by this package's source. One alone is a user's column.
READ_BACK = frozenset({"kind", "message_id", "publish_time"})

#: This one, too, only the source adds.
_SCHEMA_VERSION = "schema_version"

#: Rows that have all of these were read from Kafka.
KAFKA = ("topic", "partition", "offset")
_KAFKAS = {"partition": ("int",), "offset": ("bigint",)}

#: Kafka's name for the payload, pulsar-spark's names, and plurals.
ALIASES = {
    "__eventtime": "event_time",
    "__key": "key",
    "__messageid": "origin_message_id",
    "__messageproperties": "headers",
    "__orderingkey": "ordering_key",
    "__topic": "origin_topic",
    "rules": "rule",
    "value": "payload",
}

#: Columns that sources add: an explicit column wins over them, and so does a header.
_OF_SOURCES = frozenset({"__topic", "__messageid", "topic", "timestamp"})

#: Not written, because a letter has no property for the first publish time.
IGNORED = frozenset({"__publishtime"})


_COLLATION: Final = re.compile(r" collate \w+", re.IGNORECASE)


class _Type(Protocol):
    def simpleString(self) -> str: ...  # noqa: N802 - Spark's name


class _Field(Protocol):
    name: str
    dataType: _Type  # noqa: N815 - Spark's name


@attrs.frozen
class Columns:
    """Which column of a frame is which.

    Attributes:
        known: By our name, the position of each known column.
        extra: By the frame's name, the position of each further column.
        ignored: The names of columns that are not written.
        of_source: The columns in `known` that a source has added; the row's headers win over them.
    """

    known: Mapping[str, int]
    extra: Mapping[str, int]
    ignored: tuple[str, ...] = ()
    of_source: frozenset[str] = frozenset()

    @property
    def read_back(self) -> bool:
        """Whether the rows were written before, and were read by this package."""
        return self.known.keys() >= READ_BACK

    @property
    def has_schemas(self) -> bool:
        """Whether rows name the versions of the schemas that they were written with."""
        return self.read_back and _SCHEMA_VERSION in self.known

    @property
    def has_targets(self) -> bool:
        """Whether a row may name the topic to write to."""
        return "target_topic" in self.known

    @property
    def kafkas(self) -> bool:
        """Whether Kafka's columns give the origin of the rows: there is no column `source`."""
        return self.known.keys() >= set(KAFKA) and "source" not in self.known

    @classmethod
    def of(cls, names: Iterable[str], *, extra: bool) -> Columns:
        """Find the columns among *names*, in any case.

        Args:
            names: The names of the frame's columns.
            extra: Whether further columns are allowed.

        Raises:
            ConfigError: a column is unknown, two columns are the same, or there is no payload.
        """
        known: dict[str, int] = {}
        further: dict[str, int] = {}
        ignored: list[str] = []
        of_source: set[str] = set()
        names = list(names)
        present = {name.lower() for name in names}
        read_back = present >= READ_BACK
        accepted = {**COLUMNS, **_KAFKAS} if present >= {*KAFKA} and not read_back else COLUMNS
        for position, name in enumerate(names):
            ours = _ours(name.lower(), present, read_back=read_back)
            if ours is None or (name.lower() in _OF_SOURCES and ours in present - {name.lower()}):
                ignored.append(name)
            elif ours in {*READ_BACK, _SCHEMA_VERSION} and not read_back:
                if not extra:
                    raise ConfigError(_lone_column_text(name))
                further[name] = position
            elif ours in known:
                raise ConfigError(f"column {name!r}: expected only one column for {ours}")
            elif ours in accepted:
                known[ours] = position
                if name.lower() in _OF_SOURCES:
                    of_source.add(ours)
            elif extra:
                further[name] = position
            else:
                hint = "; extra=properties or extra=json accepts further columns"
                raise ConfigError(unknown_name("column", name, (*COLUMNS, *ALIASES)) + hint)
        if "payload" not in known:
            raise ConfigError(
                "no column 'payload': expected one of type binary or string (or a column 'value')"
            )
        return cls(known, further, tuple(ignored), frozenset(of_source))


def _ours(name: str, present: Container[str], *, read_back: bool) -> str | None:
    """Return our name for the column *name*; None if it is not written.

    *present* are the names of all columns of the frame, in lower case.
    """
    kafkas = not read_back and all(each in present for each in KAFKA)
    if name in IGNORED or (kafkas and name == "timestamptype"):
        return None
    if kafkas and name == "timestamp":
        return "event_time"
    if name == "topic" and not (kafkas or read_back):
        return "origin_topic"
    return ALIASES.get(name, name)


def warn_of(columns: Columns, names: Iterable[str], options: SinkOptions) -> None:
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
    if "topic" in (name.lower() for name in names) and "origin_topic" in columns.of_source:
        _warn_once(
            "the column topic is used as the topic that the rows came from (REAL_TOPIC); use a "
            "column target_topic to send them to other topics than the subscription's"
        )


@functools.cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)


def _lone_column_text(name: str) -> str:
    return (
        f"unknown column {name!r}: {', '.join(sorted(READ_BACK))} are accepted only together, as "
        "the source gives them; extra=properties or extra=json accepts a column of your own"
    )


def check_schema(schema: Any, options: SinkOptions) -> Columns:
    """Check a frame's schema, a `pyspark.sql.types.StructType`, on the driver.

    Raises:
        ConfigError: a column is unknown, missing, of a wrong type, or contradicts the options.
    """
    fields: list[_Field] = list(schema.fields)
    columns = Columns.of((each.name for each in fields), extra=options.extra != "error")
    for ours, position in columns.known.items():
        accepted = COLUMNS.get(ours) or _KAFKAS[ours]
        _check_type(fields[position], accepted)
    if options.extra == "properties":
        for position in columns.extra.values():
            _check_extra(fields[position])
    _check_targets(columns, options)
    return columns


def _check_type(field: _Field, accepted: tuple[str, ...]) -> None:
    kind = field.dataType.simpleString()
    # A collation makes no difference here; an untyped null is allowed everywhere.
    word = _COLLATION.sub("", kind)
    if word not in {*accepted, "void"} and not (
        "struct" in accepted and word.startswith("struct<")
    ):
        raise ConfigError(f"column {field.name!r} is {kind}: expected {' or '.join(accepted)}")


def _check_extra(field: _Field) -> None:
    kind = field.dataType.simpleString()
    if kind.startswith(("array<", "map<", "struct<", "binary", "variant", "interval")):
        raise ConfigError(
            f"column {field.name!r} is {kind}: expected a plain value with extra=properties; "
            "extra=json accepts any"
        )
    if field.name.startswith(FAILURE) or field.name in RESERVED_PROPERTIES:
        raise ConfigError(
            f"column {field.name!r}: expected another name, because the system uses this one"
        )


def _check_targets(columns: Columns, options: SinkOptions) -> None:
    """Refuse a frame whose rows have no target topic, as far as that is known in advance."""
    if columns.has_targets:
        return
    retry, dead_letter = options.targets.retry, options.targets.dead_letter
    if retry is None and dead_letter is None:
        raise ConfigError(
            "topic=None: expected topic with subscription, retry.topic with dead_letter.topic, "
            "or a column 'target_topic'"
        )
    if columns.known.keys() & {"action", "retryable", "attempt", "headers"}:
        return
    if retry is None and options.max_attempts > 1:
        raise ConfigError.bad(
            "retry.topic",
            None,
            "a topic, because no column tells which rows to retry; or max_attempts=1, which makes "
            "all of them dead letters",
        )
    if dead_letter is None and options.max_attempts == 1:
        raise ConfigError.bad(
            "dead_letter.topic", None, "a topic, because max_attempts=1 makes all rows dead letters"
        )

"""The columns of failed rows: their names, other systems' names for them, and their types. Pure.

Only ``payload`` is needed. A null says nothing: the row is treated as if it had no such column.

| column | type | what it is |
|---|---|---|
| payload | binary, string | the message; null: a tombstone |
| key | string, binary | its key |
| ordering_key | string, binary | its ordering key, which Key_Shared subscriptions go by |
| action | string | ``retry`` or ``dead_letter``; null: by ``retryable`` and ``attempt`` |
| topic | string | where it goes instead of the subscription's topics |
| reason, stage | string | why and where it failed, in a word |
| error, details | string | the error's type or condition, and its text |
| rule | string, array of string | the rules that it broke |
| retryable | boolean | false: to the dead-letter topic |
| attempt | integer | which attempt failed, from 1; 0: it starts anew |
| delay_ms, not_before | integer, timestamp | when it comes back (``not_before`` wins) |
| event_time | timestamp, integer | when it happened (an integer: ms since 1970) |
| origin_topic, origin_message_id | string | where it came from |
| source | struct | the same for files, tables and other systems |
| headers | map of string, Kafka's array | the message's own properties |
| dedupe_id | string | equal for equal rows |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.wire.properties import FAILURE, RESERVED_PROPERTIES
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.parsing import unknown_name

_TEXT = ("string",)
_BYTES = ("binary", "string")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_TIME = ("timestamp", "timestamp_ntz")

#: The columns and the types that each may have, by Spark's names of types.
COLUMNS: dict[str, tuple[str, ...]] = {
    "payload": _BYTES,
    "key": _BYTES,
    "ordering_key": _BYTES,
    "action": _TEXT,
    "topic": _TEXT,
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
    "origin_message_id": _TEXT,
    "source": ("struct",),
    # The second is what Spark's Kafka source gives.
    "headers": ("map<string,string>", "array<struct<key:string,value:binary>>"),
    "dedupe_id": _TEXT,
    # What reading adds, so that what was read can be written again: see `READ_BACK`.
    "kind": _TEXT,
    "message_id": _TEXT,
    "publish_time": _TIME,
}

#: Rows that have all of these were read by this package's source. One alone is a user's own.
READ_BACK = frozenset({"kind", "message_id", "publish_time"})

#: Kafka's name for the payload, pulsar-spark's for what it can write, and plurals.
ALIASES = {
    "__eventtime": "event_time",
    "__key": "key",
    "__orderingkey": "ordering_key",
    "__messageproperties": "headers",
    "__topic": "topic",
    "rules": "rule",
    "value": "payload",
}

#: What pulsar-spark reads and ignores when it writes.
IGNORED = frozenset({"__messageid", "__publishtime"})


class _Type(Protocol):
    def simpleString(self) -> str: ...  # noqa: N802 - Spark's name


class _Field(Protocol):
    name: str
    dataType: _Type  # noqa: N815 - Spark's name


@attrs.frozen
class Columns:
    """Which column of a frame is which.

    Attributes:
        known: The position of each column that the frame has, by our name.
        extra: The position of each further column, by the frame's name.
        ignored: The names of columns that are left out.
    """

    known: Mapping[str, int]
    extra: Mapping[str, int]
    ignored: tuple[str, ...] = ()

    @property
    def read_back(self) -> bool:
        """Whether the rows were read by this package's source: then `topic` is no target."""
        return self.known.keys() >= READ_BACK

    @property
    def has_targets(self) -> bool:
        """Whether a row may name its topic itself."""
        return "topic" in self.known and not self.read_back

    @classmethod
    def of(cls, names: Iterable[str], *, extra: bool) -> Columns:
        """Find the columns among *names*, in any case.

        Args:
            names: The frame's.
            extra: Whether further columns are welcome.

        Raises:
            ConfigError: one is unknown or two are the same, or there is no payload.
        """
        known: dict[str, int] = {}
        further: dict[str, int] = {}
        ignored: list[str] = []
        names = list(names)
        read_back = {name.lower() for name in names} >= READ_BACK
        for position, name in enumerate(names):
            ours = ALIASES.get(name.lower(), name.lower())
            if ours in READ_BACK and not read_back:
                if not extra:
                    raise ConfigError(_alone(name))
                further[name] = position
            elif ours in IGNORED:
                ignored.append(name)
            elif ours in known:
                raise ConfigError(f"column {name!r}: expected only one column for {ours}")
            elif ours in COLUMNS:
                known[ours] = position
            elif extra:
                further[name] = position
            else:
                hint = "; extra=properties or extra=json takes them along"
                raise ConfigError(unknown_name("column", name, (*COLUMNS, *ALIASES)) + hint)
        if "payload" not in known:
            raise ConfigError("no column 'payload': expected one of binary or string (or 'value')")
        return cls(known, further, tuple(ignored))


def _alone(name: str) -> str:
    return (
        f"unknown column {name!r}: {', '.join(sorted(READ_BACK))} are columns only together, as "
        "reading gives them; extra=properties or extra=json takes one of your own along"
    )


def check_schema(schema: Any, options: SinkOptions) -> Columns:
    """Check a frame's schema, a `pyspark.sql.types.StructType`, on the driver.

    Raises:
        ConfigError: a column is unknown, missing, of a wrong type, or at odds with the options.
    """
    fields: list[_Field] = list(schema.fields)
    columns = Columns.of((each.name for each in fields), extra=options.extra != "error")
    for ours, position in columns.known.items():
        _check_type(fields[position], COLUMNS[ours])
    if options.extra == "properties":
        for position in columns.extra.values():
            _check_extra(fields[position])
    _check_targets(columns, options)
    if options.effectively_once is not None and columns.has_targets:
        raise ConfigError(
            "column 'topic': expected none with delivery=effectively-once, which has to know all "
            "topics beforehand"
        )
    return columns


def _check_type(field: _Field, accepted: tuple[str, ...]) -> None:
    kind = field.dataType.simpleString()
    # A collation is no matter here; an untyped null fits everywhere.
    word = kind.split(" ", 1)[0]
    if word not in {*accepted, "void"} and not (
        "struct" in accepted and word.startswith("struct<")
    ):
        raise ConfigError(f"column {field.name!r} is {kind}: expected {' or '.join(accepted)}")


def _check_extra(field: _Field) -> None:
    kind = field.dataType.simpleString()
    if kind.startswith(("array<", "map<", "struct<", "binary", "variant", "interval")):
        raise ConfigError(
            f"column {field.name!r} is {kind}: expected a plain value with extra=properties; "
            "extra=json takes any"
        )
    if field.name.startswith(FAILURE) or field.name in RESERVED_PROPERTIES:
        raise ConfigError(f"column {field.name!r}: expected another name, for it is the system's")


def _check_targets(columns: Columns, options: SinkOptions) -> None:
    """Refuse a frame whose rows have nowhere to go, as far as that is known beforehand."""
    if columns.has_targets:
        return
    retry, dead_letter = options.targets.retry, options.targets.dead_letter
    if retry is None and dead_letter is None:
        raise ConfigError(
            "topic=None: expected topic with subscription, retry.topic with dead_letter.topic, "
            "or a column 'topic'"
        )
    if columns.known.keys() & {"action", "retryable", "attempt", "headers"}:
        return
    if retry is None and options.max_attempts > 1:
        raise ConfigError.bad(
            "retry.topic",
            None,
            "a topic, for nothing tells these rows from retryable ones; or max_attempts=1, which "
            "makes all of them dead letters",
        )
    if dead_letter is None and options.max_attempts == 1:
        raise ConfigError.bad("dead_letter.topic", None, "a topic, for max_attempts=1")

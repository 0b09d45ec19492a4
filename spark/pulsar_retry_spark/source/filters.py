"""The filters of a query that the source applies: those on topic, kind and publish time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import attrs

from pulsar_retry_spark.source.topics import Partition

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

#: Milliseconds by which publish times may be out of order. A publish time is the time of the
#: producer's clock when the client got the message, so it is old if the message had to wait for its
#: broker. Therefore that much more is read at both ends, and Spark filters each row again.
SLACK = 15 * 60_000

#: The conditions that are used, by the names of Spark's classes: Spark has them since 4.1.
_EQUAL = frozenset({"EqualTo", "EqualNullSafe"})
_FROM = _EQUAL | {"GreaterThan", "GreaterThanOrEqual"}
_TO = _EQUAL | {"LessThan", "LessThanOrEqual"}

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@attrs.define
class Selection:
    """The messages that have to be read.

    Attributes:
        allowed: For `topic` and `kind`, the values that rows may have; if absent, any value.
        since: The first publish time to read, in milliseconds since 1970; None for no bound.
        until: The last publish time to read; None for no bound.
    """

    allowed: dict[str, set[Any]] = attrs.field(factory=dict)
    since: int | None = None
    until: int | None = None

    def take(self, filters: Iterable[Filter]) -> Iterable[Filter]:
        """Use *filters*, and yield those that Spark has to apply itself.

        Filters on the publish time are used, but also yielded: they spare reading most of the other
        messages, but not each of them.
        """
        for each in filters:
            if not self._take(each):
                yield each

    def has(self, partition: Partition) -> bool:
        """Return whether rows of *partition* may be wanted."""
        return all(getattr(partition, column) in values for column, values in self.allowed.items())

    def _take(self, condition: Filter) -> bool:
        column = getattr(condition, "attribute", ())
        value = getattr(condition, "value", None)
        if column in (("topic",), ("kind",)):
            return self._take_values(column[0], condition, value)
        if column == ("publish_time",) and isinstance(value, dt.datetime):
            self._take_time(condition, _milliseconds(value))
        return False

    def _take_values(self, column: str, condition: Filter, value: Any) -> bool:
        kind = type(condition).__name__
        if kind in _EQUAL:
            values = {value}
        elif kind == "In":
            values = set(value)
        else:
            return False
        self.allowed[column] = self.allowed.get(column, values) & values
        return True

    def _take_time(self, condition: Filter, moment: int) -> None:
        kind = type(condition).__name__
        if kind in _FROM:
            self.since = max(self.since or 0, moment - SLACK)
        if kind in _TO:
            latest = moment + SLACK
            self.until = latest if self.until is None else min(self.until, latest)


def _milliseconds(moment: dt.datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
    return (aware - _EPOCH) // dt.timedelta(milliseconds=1)

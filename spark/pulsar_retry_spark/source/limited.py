"""Streams on Spark 4.2 and newer, which say where a micro-batch starts and how large it may be."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pulsar_retry_spark.source.stream import FailureStreamReader


class LimitedStreamReader(FailureStreamReader, SupportsTriggerAvailableNow):
    """A stream whose micro-batches can have a limit."""

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch that the options set."""
        rows = self._options.max_rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read only up to the end of the topics at the next call of `latestOffset`."""
        self._available_now = True

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        """Return where the next micro-batch ends; arguments and errors are those of `ends`."""
        return self.ends(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

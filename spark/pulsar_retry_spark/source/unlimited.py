"""Streams on Spark 4.0 and 4.1, which do not say where a micro-batch starts or how large it may be.

So a micro-batch has everything that there is. When a query starts again, Spark reports the last
offset that it has planned, by a call of `partitions` from there to there. This does not mean that
the rows before it were processed. So rows are acknowledged only when Spark commits them, which it
does with the next micro-batch. Spark itself handles the trigger AvailableNow: it asks once, before
anything else, and never tells the source.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pyspark.sql.datasource import InputPartition

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.clients import CachedClient, lease
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.reaching import reach
from pulsar_retry_spark.source.extent import last_message
from pulsar_retry_spark.source.options import SourceOptions
from pulsar_retry_spark.source.patience import patiently, refusals_of
from pulsar_retry_spark.source.positions import LATEST, MessagePosition, to_offset
from pulsar_retry_spark.source.reading import Piece
from pulsar_retry_spark.source.stream import NOT_PLANNED, FailureStreamReader
from pulsar_retry_spark.source.topics import AT_ONCE, existing, quiet

#: Seconds between two checks for new messages while it is not known where the query is.
_POLL = 1.0


class UnlimitedStreamReader(FailureStreamReader):
    """A stream whose micro-batches have no limit."""

    acknowledges_start = False

    def __init__(self, options: SourceOptions) -> None:
        """Make it.

        Raises:
            ConfigError: a limit is set.
        """
        if options.max_rows is not None:
            accepted = "no value before Spark 4.2: a micro-batch has everything that there is"
            raise ConfigError.bad("max_rows_per_batch", options.max_rows, accepted)
        super().__init__(options)
        # Where the next micro-batch starts, as far as Spark has said it.
        self._start: dict[str, str] | None = None
        self._seen: tuple[dict[str, str], float] = ({}, 0.0)

    def initialOffset(self) -> dict[str, str]:
        """Return the offset before anything is read; called if no micro-batch was finished."""
        start = super().initialOffset()
        if self._start is None:
            self._start = start
        return start

    def latestOffset(self) -> dict[str, str]:  # type: ignore[override]
        """Return where the next micro-batch ends; the errors are those of `ends`."""
        if self._start is None:
            return self._last()
        self._start = self.ends(self._start, None)
        return self._start

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """Return one task for each partition; the errors are those of `ends`."""
        self._start = end
        return [] if start == end else super().partitions(start, end)

    def _last(self) -> dict[str, str]:
        """Return the ends of the topics, without the subscription.

        It is not known here where the query is. So it can't be checked whether the broker has
        deleted messages; that happens when Spark plans a micro-batch.
        """
        options = self._options
        if time.monotonic() >= self._seen[1]:
            reach(options.connection, PulsarSourceError)
            with refusals_of(NOT_PLANNED), lease(quiet(options.connection)) as cached:
                found = patiently(lambda: self._last_messages(cached))
            marks = LATEST if options.starting == "latest" else {}
            self._seen = (to_offset(found, marks), time.monotonic() + _POLL)
        return self._seen[0]

    def _last_messages(self, client: CachedClient) -> dict[str, MessagePosition]:
        options = self._options
        found = existing(client.client, options)
        pieces = [Piece(each, strict=options.fail_on_data_loss) for each in found]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            ends = zip(pieces, threads.map(partial(last_message, client), pieces), strict=True)
            return {piece.partition.name: last for piece, last in ends if last is not None}

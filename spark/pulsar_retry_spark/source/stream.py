"""`spark.readStream.format("pulsar-failures")`: retry and dead-letter topics as a stream of rows.

An offset has the last message read of each partition: ``{"<partition>": "ledger:entry:batch"}``.
The driver plans with message ids only. Workers read with readers, which leave nothing behind on the
broker. What a checkpoint says was processed is acknowledged on a durable subscription.

How Spark asks for the end of a micro-batch depends on its release: see `limited` and `unlimited`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import islice
from typing import Any

import pulsar
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pulsar_retry_spark.clients import lease
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.reaching import reach
from pulsar_retry_spark.source.options import SourceOptions
from pulsar_retry_spark.source.patience import patiently, refusals_of
from pulsar_retry_spark.source.positions import LATEST, MessagePosition, from_offset, to_offset
from pulsar_retry_spark.source.reading import Piece, messages, read_batches
from pulsar_retry_spark.source.subscription import ReadingSubscription
from pulsar_retry_spark.source.topics import Partition, existing, quiet, warn_if_none

#: Seconds between two checks for new messages while there are none: Spark asks 80 times a second.
_POLL = 0.2

_NO_ANSWER = (
    "the broker does not answer to subscription {!r} of the topics: if it does not create "
    "subscriptions (allowAutoSubscriptionCreation), create it on each of them"
)

NOT_PLANNED = "no micro-batch was planned"

Positions = dict[str, MessagePosition]


class FailureStreamReader(DataSourceStreamReader):
    """Plans on the driver, in a process that belongs to the query, and reads in workers.

    A subclass has `latestOffset`. The values set in `__init__` are sent to the workers; the
    connections of the driver are not.

    Attributes:
        acknowledges_start: Whether the first offset that Spark names was processed.
    """

    acknowledges_start = True

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._available_now = False
        self._finished = False
        self._planner: Planner | None = None
        # An offset after which nothing was found, and when to look again.
        self._idle: tuple[dict[str, str], float] = ({}, 0.0)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}

    def initialOffset(self) -> dict[str, str]:
        """Return the offset before anything is read. It has to be the same after a crash."""
        return {}

    def ends(self, start: dict[str, str], most: int | None) -> dict[str, str]:
        """Return where the micro-batch from *start* ends; *start* if there is nothing to read.

        Args:
            start: Where the micro-batch starts.
            most: How many rows it may have; None for no limit.

        Raises:
            PulsarSourceError: another query has the subscription, data is lost, or the broker was
                not reached or refuses.
        """
        if self._finished or (self._idle[0] == start and time.monotonic() < self._idle[1]):
            return start
        with refusals_of(NOT_PLANNED):
            # This does not wait for the broker: a wrong service.url is not a broker that restarts.
            self._planner_from(start)
            return patiently(lambda: self._ends(start, most))

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """Return one task for each partition that has something to read.

        Raises:
            PulsarSourceError: for the same reasons as `ends`.
        """
        if self._planner is None and not self._finished:
            with refusals_of(NOT_PLANNED):
                self._planner_from(start)  # the batch is repeated: keep the broker from deleting it
        if not start and LATEST.items() <= end.items():
            return []  # messages older than the stream are left out
        options, befores = self._options, from_offset(start)
        return [
            InputPartition(
                Piece.of(
                    Partition.of(options.topic_of(name), name), options, befores.get(name), last
                )
            )
            for name, last in from_offset(end).items()
            if name not in befores or last > befores[name]
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part of one partition, in a worker."""
        return read_batches(self._options.connection, partition.value, self._options.queue)

    def commit(self, end: dict[str, str]) -> None:
        """Acknowledge everything that the checkpoint covers.

        Raises:
            PulsarSourceError: for the same reasons as `ends`.
        """
        if not self._finished:
            with refusals_of("nothing was acknowledged"):
                planner = self._planner_from(end)
                patiently(lambda: planner.acknowledge(from_offset(end)))

    def stop(self) -> None:
        """Close what is open. Spark does not call this method; it ends the process."""
        self._finish()

    def _ends(self, start: dict[str, str], most: int | None) -> dict[str, str]:
        planner = self._planner_from(start)
        if not start and self._options.starting == "latest":
            return to_offset(planner.last_entries(), LATEST)
        positions = from_offset(start)
        planner.discover(positions)
        ends = planner.ends(positions)
        if most is not None:
            ends = planner.limited(positions, ends, most)
        if self._available_now:
            # Spark commits the last micro-batch to its checkpoint without a call of `commit`, but
            # its next call starts there. (Spark refuses this trigger if checkpoints lag behind.)
            planner.acknowledge(positions)
            if ends == positions:
                self._finish()
        if ends == positions:
            self._idle = (start, time.monotonic() + _POLL)
        return to_offset(ends, {key: start[key] for key in LATEST if key in start})

    def _planner_from(self, start: dict[str, str]) -> Planner:
        """Return the planner. At the first call, the checkpoint says that *start* was processed."""
        if self._planner is None:
            positions = from_offset(start)
            for name in positions:
                self._options.topic_of(name)  # raises if the checkpoint is that of another query
            reach(self._options.connection, PulsarSourceError)
            with ExitStack() as on_failure:
                planner = Planner(self._options)
                on_failure.callback(planner.close)
                latest = not start and self._options.starting == "latest"
                try:
                    planner.discover(positions, latest=latest)
                except pulsar.Timeout:
                    name = self._options.subscription
                    raise PulsarSourceError("TIMEOUT", _NO_ANSWER.format(name)) from None
                if self.acknowledges_start:
                    planner.acknowledge(positions)
                if self._available_now:
                    planner.bound = planner.ends(positions)
                on_failure.pop_all()
            self._planner = planner
        return self._planner

    def _finish(self) -> None:
        self._finished = True
        if self._planner is not None:
            self._planner.close()
            self._planner = None


class Planner:
    """The connections of a stream on the driver.

    Attributes:
        bound: The last positions to read; None to read everything that comes.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._opened = ExitStack()
        self._client = self._opened.enter_context(lease(quiet(options.connection)))
        self._subscription = ReadingSubscription(
            self._client, options.subscription, options.fail_on_data_loss
        )
        self._opened.callback(self._subscription.close)
        self._partitions: dict[str, Partition] = {}
        self._next_discovery = 0.0
        self._rotation = 0
        self.bound: Positions | None = None

    def discover(self, positions: Positions, *, latest: bool = False) -> None:
        """Look for topics and partitions at intervals, and subscribe to new ones."""
        if time.monotonic() < self._next_discovery:
            return
        known = {each.topic for each in self._partitions.values()}
        found = existing(self._client.client, self._options, known)
        if self._next_discovery == 0:
            warn_if_none(found, self._options)
        for partition in found:
            if partition.name not in self._partitions:
                after = positions.get(partition.name)
                self._subscription.add(partition, after, latest=latest)
                self._partitions[partition.name] = partition
        self._next_discovery = time.monotonic() + self._options.discovery

    def last_entries(self) -> Positions:
        """Return the last entry of each partition."""
        found = {name: self._subscription.last(name) for name in self._partitions}
        return {name: last for name, last in found.items() if last is not None}

    def ends(self, positions: Positions) -> Positions:
        """Return *positions*, moved forward to the last messages to read."""
        if self.bound is not None:
            return advanced(positions, self.bound)
        found: Positions = {}
        for name, partition in self._partitions.items():
            after = positions.get(name)
            last = self._subscription.last_message(partition, after)
            if last is None:
                continue
            if after is not None and after.ledger != last.ledger:
                self._subscription.check(partition, after)
            found[name] = last
        return advanced(positions, found)

    def limited(self, positions: Positions, ends: Positions, rows: int) -> Positions:
        """Return *positions*, moved forward by *rows* messages in all, but not beyond *ends*.

        Each partition gets an equal share; what one does not use goes to the next ones.

        The messages are counted one by one, because message ids do not show the size of a batch.
        """
        behind = [name for name in ends if ends[name] != positions.get(name)]
        self._rotation += 1  # if there are more partitions than rows, each has its turn
        shift = self._rotation % max(1, len(behind))
        reached = dict(positions)
        for index, name in enumerate(behind[shift:] + behind[:shift]):
            share = -(-rows // (len(behind) - index))
            piece = Piece.of(self._partitions[name], self._options, positions.get(name), ends[name])
            with closing(messages(self._client, piece, min(share, self._options.queue))) as found:
                passed = [position for position, _ in islice(found, share)]
            if passed:
                reached[name] = MessagePosition(*passed[-1])
            rows -= len(passed)
        return reached

    def acknowledge(self, positions: Positions) -> None:
        """Let the broker delete everything up to *positions*."""
        self._subscription.acknowledge(positions)

    def close(self) -> None:
        """Send the acknowledgements, and disconnect from the subscription."""
        self._opened.close()


def advanced(positions: Positions, ends: Positions) -> Positions:
    """Return *positions*, moved forward to *ends* where these are further."""
    further = {
        name: end for name, end in ends.items() if name not in positions or end > positions[name]
    }
    return {**positions, **further}

"""How rows are put together and vouched for, against pulsar-client's rules of batching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from _pulsar import Result
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.receipts import Receipts
from pulsar_retry_spark.sink.producers import BatchProducer

MAX_PAYLOAD, MAX_SIZE = 1000, 2000


def options(messages: int) -> SinkOptions:
    """Return options with small batches."""
    parsed = SinkOptions.parse(
        {
            "service.url": "pulsar://localhost",
            "topic": "t",
            "subscription": "s",
            "batch.messages": str(messages),
            "batch.bytes": str(MAX_PAYLOAD),
        }
    )
    return attrs.evolve(parsed, max_message_bytes=MAX_SIZE)


@attrs.frozen
class Id:
    """Stands for a message id."""

    index: int

    def batch_index(self) -> int:
        return self.index


@attrs.define
class Producer:
    """Batches as `BatchMessageContainer` of pulsar-client does; each message is its payload size.

    A batch is sent when it is full, when the next message does not fit, and when it is flushed.
    """

    messages: int
    open: list[tuple[int, Any]] = attrs.Factory(list)
    sent: list[list[int]] = attrs.Factory(list)
    result: Any = Result.Ok

    def send_async(self, payload: int, callback: Any) -> None:
        if sum(size for size, _ in self.open) + payload > MAX_PAYLOAD:
            self.flush()
        self.open.append((payload, callback))
        if len(self.open) >= self.messages or sum(size for size, _ in self.open) >= MAX_PAYLOAD:
            self.flush()

    def flush(self) -> None:
        batch, self.open = self.open, []
        self.sent += [[size for size, _ in batch]] if batch else []
        for index, (_, callback) in enumerate(batch):
            if callback is not None:
                callback(self.result, Id(index))


@attrs.frozen
class Messages:
    """Rows that are their payload sizes."""

    payload_sizes: list[int]
    sizes: list[int]

    def build(self, _module: Any, letters: list[int], rows: Sequence[int]) -> None:
        letters.extend(self.payload_sizes[row] for row in rows)


def of(*rows: tuple[int, int]) -> Messages:
    """Return messages of these payload sizes and sizes."""
    return Messages([payload for payload, _ in rows], [size for _, size in rows])


class Harness:
    """A sender's producer on one of pulsar-client that is not there, and its receipts."""

    def __init__(self, messages: int, kind: type[Producer] = Producer) -> None:
        self.producer = kind(messages)
        self.receipts = Receipts(timeout=0.01)
        self.producing = BatchProducer(
            "t", self.producer, options(messages), self.receipts, self.reserve
        )
        self.reserved: list[tuple[int, int]] = []

    def reserve(self, rows: int, size: int) -> None:
        """Count rows as under way, as the sender does."""
        self.reserved.append((rows, size))
        self.receipts.pending += rows

    def finish(self) -> None:
        """Send and await all."""
        self.producing.flush()
        if not self.producing.sealed:
            self.producing.seal()
        self.receipts.wait()


rows = st.lists(st.tuples(st.integers(0, 1200), st.integers(1, 900)), max_size=60)


@given(rows, st.integers(1, 8))
def test_every_row_is_sent_and_vouched_for(rows, messages):
    """In order, in batches whose last row asks for a receipt, and none of them too big."""
    harness = Harness(messages)
    half = len(rows) // 2
    for some in (rows[:half], rows[half:]):
        messages = of(*((payload, payload + rest) for payload, rest in some))
        harness.producing.send(messages, range(len(some)))
    harness.finish()

    batches = harness.producer.sent
    assert [payload for payload, _ in rows] == [size for batch in batches for size in batch]
    assert len(rows) == harness.receipts.acked
    assert [len(batch) for batch in batches] == [count for count, _ in harness.reserved]
    for batch, (_, size) in zip(batches, harness.reserved, strict=True):
        assert len(batch) == 1 or (size <= MAX_SIZE and sum(batch) <= MAX_PAYLOAD)


def test_a_full_batch_needs_no_sealing():
    """So nothing waits for the broker while rows come."""
    harness = Harness(2)
    for _ in range(4):
        harness.producing.send(of((1, 1)), range(1))
        assert harness.producing.sealed
    assert [[1, 1], [1, 1]] == harness.producer.sent


def test_a_batch_that_travelled_in_two():
    """The receipt of its last row says nothing of the others: an error, not a loss."""

    class Timer(Producer):
        def send_async(self, payload: int, callback: Any) -> None:
            super().send_async(payload, callback)
            self.flush()

    harness = Harness(4, Timer)
    harness.producing.send(of((1, 1)), range(1))
    harness.producing.send(of((1, 1)), range(1))
    with pytest.raises(PulsarFailuresError, match="BATCH_BROKEN"):
        harness.finish()


def test_a_batch_that_is_refused():
    """The error says by what name pulsar-client does so, how many rows, and the topic."""
    harness = Harness(2)
    harness.producer.result = Result.TopicTerminated
    harness.producing.send(of((1, 1)), range(1))
    with pytest.raises(PulsarFailuresError) as caught:
        harness.finish()
    assert (
        "[PULSAR_SINK_TOPIC_TERMINATED] 1 rows for t could not be written: pulsar-client says "
        "TopicTerminated" == str(caught.value)
    )


def test_receipts_that_stay_away():
    """A stalled broker ends as an error, never as a task that hangs."""
    receipts = Receipts(timeout=0.01)
    receipts.pending = 3
    receipts.of_batch("t", 1)(Result.Ok, Id(-1))
    with pytest.raises(PulsarFailuresError, match=r"TIMEOUT\] 2 rows have had no receipt for 0.01"):
        receipts.wait()
    assert 1 == receipts.acked

"""How rows are put together and vouched for, against pulsar-client's rules of batching."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from _pulsar import Result
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.receipts import Receipts
from pulsar_retry_spark.sink.lanes import BatchLane

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


class Harness:
    """A lane to a producer that is not there, and its receipts."""

    def __init__(self, messages: int, kind: type[Producer] = Producer) -> None:
        self.producer = kind(messages)
        self.receipts = Receipts(timeout=0.01)
        self.lane = BatchLane("t", self.producer, options(messages), self.receipts, self.reserve)
        self.reserved: list[tuple[int, int]] = []

    def reserve(self, rows: int, size: int) -> None:
        """Count rows as under way, as the sender does."""
        self.reserved.append((rows, size))
        self.receipts.pending += rows

    def finish(self) -> None:
        """Send and await all."""
        self.lane.flush()
        if not self.lane.sealed:
            self.lane.seal()
        self.receipts.wait()


rows = st.lists(st.tuples(st.integers(0, 1200), st.integers(1, 900)), max_size=60)


@given(rows, st.integers(1, 8))
def test_every_row_is_sent_and_vouched_for(rows, messages):
    """In order, in batches whose last row asks for a receipt, and none of them too big."""
    under_test = Harness(messages)
    for payload, rest in rows:
        under_test.lane.add(payload, payload + rest, payload, "")
    under_test.finish()

    batches = under_test.producer.sent
    assert [payload for payload, _ in rows] == [size for batch in batches for size in batch]
    assert len(rows) == under_test.receipts.acked
    assert [len(batch) for batch in batches] == [count for count, _ in under_test.reserved]
    for batch, (_, size) in zip(batches, under_test.reserved, strict=True):
        assert len(batch) == 1 or (size <= MAX_SIZE and sum(batch) <= MAX_PAYLOAD)


def test_a_full_batch_needs_no_sealing():
    """So nothing waits for the broker while rows come."""
    under_test = Harness(2)
    for _ in range(4):
        under_test.lane.add(1, 1, 1, "")
        assert under_test.lane.sealed
    assert [[1, 1], [1, 1]] == under_test.producer.sent


def test_a_batch_that_travelled_in_two():
    """The receipt of its last row says nothing of the others: an error, not a loss."""

    class Timer(Producer):
        def send_async(self, payload: int, callback: Any) -> None:
            super().send_async(payload, callback)
            self.flush()

    under_test = Harness(4, Timer)
    under_test.lane.add(1, 1, 1, "")
    under_test.lane.add(1, 1, 1, "")
    with pytest.raises(PulsarFailuresError, match="BATCH_BROKEN"):
        under_test.finish()


def test_a_batch_that_is_refused():
    """The error says by what name pulsar-client does so, how many rows, and the topic."""
    under_test = Harness(2)
    under_test.producer.result = Result.TopicTerminated
    under_test.lane.add(1, 1, 1, "")
    with pytest.raises(PulsarFailuresError) as caught:
        under_test.finish()
    assert (
        "[PULSAR_SINK_TOPIC_TERMINATED] 1 rows for t could not be written: pulsar-client says "
        "TopicTerminated" == str(caught.value)
    )


def test_receipts_that_stay_away():
    """A stalled broker ends as an error, never as a task that hangs."""
    receipts = Receipts(timeout=0.01)
    receipts.pending = 3
    receipts.of_row(Result.Ok, Id(-1))
    with pytest.raises(PulsarFailuresError, match=r"TIMEOUT\] 2 rows have had no receipt for 0.01"):
        receipts.wait()
    assert 1 == receipts.acked

"""Wait for receipts: a task is done when each of its rows has one."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import _pulsar

from pulsar_retry_spark.errors import PulsarFailuresError, slug_of

_OK = _pulsar.Result.Ok


class Receipts:
    """Counts the rows of a task that wait for receipts, and the receipts that have come.

    pulsar-client puts receipts in the queue on its own thread; everything else runs in the task's
    thread.

    Attributes:
        pending: Rows without a receipt.
        acked: Rows with a receipt.
        duplicates: Rows in `acked` that the broker had stored before and did not store again.
    """

    def __init__(self, timeout: float) -> None:
        """Start with no rows; *timeout* is how many seconds to wait for any next receipt."""
        self._timeout = timeout
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self.pending = 0
        self.acked = 0
        self.duplicates = 0

    @property
    def of_row(self) -> Any:
        """The callback for pulsar-client with the result of one row, for any topic.

        It is a method written in C, so no Python code runs in pulsar-client's thread. It can't
        raise either; an exception would stop that thread.
        """
        return self._queue.put

    def of_batch(self, topic: str, rows: int) -> Callable[[Any, Any], None]:
        """Return the callback for the last row of a batch of *rows* rows."""
        put = self._queue.put

        def receipt(result: Any, message_id: Any) -> None:
            put((topic, rows, result, message_id))

        return receipt

    def wait(self, pending: int = 0) -> None:
        """Wait until at most *pending* rows have no receipt.

        Raises:
            PulsarFailuresError: a row was refused, or no receipt came within the time-out.
        """
        while self.pending > pending:
            try:
                receipt = self._queue.get(timeout=self._timeout)
            except Empty:
                raise PulsarFailuresError(
                    "TIMEOUT", f"{self.pending} rows have had no receipt for {self._timeout:g} s"
                ) from None
            self._take(receipt)

    def _take(self, receipt: Any) -> None:
        if receipt == _OK:
            self.pending -= 1
            self.acked += 1
            return
        if not isinstance(receipt, tuple):
            raise refused(receipt.name, "a row")
        topic, rows, result, message_id = receipt
        if result != _OK:
            raise refused(result.name, f"{rows} rows for {topic}")
        if max(message_id.batch_index(), 0) != rows - 1:  # -1 without a batch
            # Only the last row of a batch asks for a receipt, which has to cover the whole batch.
            raise PulsarFailuresError(
                "BATCH_BROKEN", f"{rows} rows for {topic} were not sent in one batch"
            )
        self.pending -= rows
        self.acked += rows
        if message_id.ledger_id() < 0:
            self.duplicates += rows


def refused(result: str, what: str) -> PulsarFailuresError:
    """Return the error for the name of one of pulsar-client's results."""
    return PulsarFailuresError(
        slug_of(result), f"{what} could not be written: pulsar-client says {result}"
    )

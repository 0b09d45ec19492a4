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
    thread. With the extension module, its `Receipts` take the place of the queue.

    Attributes:
        module: The extension module; None if rows are sent in Python.
        native: Its `Receipts`, if there is a module.
        pending: Rows without a receipt.
        acked: Rows with a receipt.
    """

    def __init__(self, timeout: float, module: Any = None) -> None:
        """Start with no rows; *timeout* is how many seconds to wait for any next receipt."""
        self._timeout = timeout
        self.module = module
        self.native: Any = None if module is None else module.Receipts()
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self.pending = 0
        self.acked = 0

    def of_batch(self, topic: str, rows: int) -> Callable[[Any, Any], None]:
        """Return the callback for the last row of a batch of *rows* rows."""
        put = self._queue.put

        def receipt(result: Any, message_id: Any) -> None:
            put((topic, rows, result, message_id))

        return receipt

    def letters(self) -> Any:
        """Return a new list for messages; with the extension module, its `Letters`."""
        return [] if self.module is None else self.module.Letters()

    def send(self, raw: Any, messages: Any, topic: str, *, each: bool = False) -> None:
        """Send *messages* with a raw producer.

        They are one batch with one receipt, or *each* has its own.
        """
        if self.module is not None:
            messages.send(raw, self.native, topic, each)
            return
        *others, last = messages
        receipt = self.of_batch(topic, 1 if each else len(messages))
        for message in others:
            raw.send_async(message, receipt if each else None)
        raw.send_async(last, receipt)

    def count(self, rows: int) -> None:
        """Count rows whose receipt came another way."""
        self.pending -= rows
        self.acked += rows

    def wait(self, pending: int = 0) -> None:
        """Wait until at most *pending* rows have no receipt.

        Raises:
            PulsarFailuresError: a row was refused, or no receipt came within the time-out.
        """
        while self.pending > pending:
            if self.native is not None:
                self._take_many(self.pending - pending)
                continue
            try:
                receipt = self._queue.get(timeout=self._timeout)
            except Empty:
                raise self._timed_out() from None
            self._take(receipt)

    def _timed_out(self) -> PulsarFailuresError:
        return PulsarFailuresError(
            "TIMEOUT", f"{self.pending} rows have had no receipt for {self._timeout:g} s"
        )

    def _take_many(self, wanted: int) -> None:
        rows, failures = self.native.take(wanted, round(self._timeout * 1000))
        self.count(rows)
        for topic, refused_rows, result in failures:
            raise _failure(topic, refused_rows, _pulsar.Result(result))
        if rows < wanted:
            raise self._timed_out()

    def _take(self, receipt: tuple[str, int, Any, Any]) -> None:
        topic, rows, result, message_id = receipt
        # Only the last row of a batch asks for a receipt, which has to cover the whole batch.
        if result != _OK or max(message_id.batch_index(), 0) != rows - 1:  # -1 without a batch
            raise _failure(topic, rows, result)
        self.count(rows)


def _failure(topic: str, rows: int, result: Any) -> PulsarFailuresError:
    """Return the error for rows with a receipt that is not as expected."""
    if result != _OK:
        return refused(result.name, f"{rows} rows for {topic}")
    return PulsarFailuresError(
        "BATCH_BROKEN", f"{rows} rows for {topic} were not sent in one batch"
    )


#: What to do about pulsar-client's results whose names do not say it.
_ADVICE = {
    "IncompatibleSchema": (
        "the topic has a schema that it compares with that of the rows, and rows are published as "
        "bytes without one: encode payloads as the schema says, such as with to_avro, and set "
        "value.schema=topic"
    ),
    "MessageTooBig": "the broker's maxMessageSize is less than max_message_bytes",
}


def refused(result: str, what: str) -> PulsarFailuresError:
    """Return the error for the name of one of pulsar-client's results."""
    advice = f": {_ADVICE[result]}" if result in _ADVICE else ""
    return PulsarFailuresError(
        slug_of(result), f"{what} could not be written: pulsar-client says {result}{advice}"
    )

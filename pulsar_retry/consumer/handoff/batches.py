"""Sends unfinished batches of letters, because somebody waits for a receipt."""

from __future__ import annotations

import contextlib
from typing import Any

import _pulsar

from pulsar_retry.runtime.worker import Worker

#: Seconds to wait for the last flush.
_PATIENCE = 5.0


class Batches:
    """The batches of one producer. Thread-safe.

    Attributes:
        delay: The maximum number of seconds that a letter waits in a batch for others.
    """

    def __init__(self, raw: Any, delay: float) -> None:
        """Make it for pulsar-client's producer *raw*."""
        self.delay = delay
        self._raw = raw
        self._is_asked = False
        self._worker = Worker("pulsar-retry-batches")

    def flush(self) -> None:
        """Have all letters sent that are in a batch now.

        While the receipts of a flush are awaited, later letters are collected for the next one.

        Another thread flushes, by the call that waits. pulsar-client's ``flush_async`` would wait
        for a lock, and keep the interpreter's meanwhile, which the owner of the lock may need.
        """
        if self._is_asked:
            return
        self._is_asked = True
        try:
            self._worker.submit(self._flush)
        except RuntimeError:  # no thread can be started
            self._flush()

    def _flush(self) -> None:
        self._is_asked = False  # first, so that letters from now on are flushed once more
        with contextlib.suppress(_pulsar.PulsarException):  # each letter gets its own result
            self._raw.flush()

    def close(self) -> None:
        """Wait for the thread, which ends soon after the producer was closed."""
        self._worker.close(_PATIENCE)

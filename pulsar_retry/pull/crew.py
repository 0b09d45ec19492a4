"""The workers of a subscriber, of the kind that its handler needs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pulsar_retry.consumer.clock import SYSTEM, Clock
from pulsar_retry.observe.tracing import spans_of
from pulsar_retry.pull.board import Board, Slot
from pulsar_retry.pull.guarding import guarded, guarded_async
from pulsar_retry.pull.options import LOOP, PROCESSES, Options
from pulsar_retry.pull.returned import Finisher
from pulsar_retry.pull.settling import LETTERS, Settler
from pulsar_retry.pull.workers import WorkerThread


class Crew:
    """The workers of one subscriber.

    Attributes:
        threads: On which handlers are called.
    """

    def __init__(
        self,
        options: Options,
        board: Board,
        settler: Settler,
        clock: Clock = SYSTEM,
        *,
        lost: Callable[[], None],
    ) -> None:
        """Start them; *lost* is called if an event loop that is not theirs ends under them."""
        assert options.handler is not None  # noqa: S101 - it was checked
        self._options = options
        self._handler = options.handler
        self._board = board
        self._settler = settler
        self._clock = clock
        self._finisher = Finisher(board, options.loop, lost)
        self.threads: list[threading.Thread] = []
        if options.workers == LOOP:
            self._start_on_loop(lost)
        else:
            for _ in range(options.concurrency):
                self.threads.append(self._worker().thread)
            for thread in self.threads:
                thread.start()

    def close(self) -> None:
        """Let go of what they shared, once the board is closed."""
        self._finisher.close()

    def _start_on_loop(self, lost: Callable[[], None]) -> None:
        from pulsar_retry.pull.async_workers import LoopWorkers  # noqa: PLC0415 - brings asyncio

        options, handler = self._options, self._handler
        if options.valve is None:  # a dispatcher's returns nothing
            handler = self._finisher.finishing_async(handler)
        if options.quarantine is not None:
            handler = guarded_async(
                handler,
                options.quarantine,
                counts_redeliveries=options.redelivery == LETTERS,
            )
        if (spans := spans_of(options.subscription)) is not None:
            handler = spans.traced_async(handler)
        workers = LoopWorkers(
            self._board,
            self._settler,
            handler,
            options.concurrency,
            valve=options.valve,
            around=options.around,
            clock=self._clock,
        )
        if options.loop is not None:
            workers.run_on(options.loop, lost)
            return
        thread = workers.thread()
        thread.start()
        self.threads.append(thread)

    def _worker(self) -> WorkerThread:
        options, slot = self._options, Slot()
        handler, close = self._handler, None
        if options.workers == PROCESSES:
            from pulsar_retry.pull.process_workers import (  # noqa: PLC0415 - few need it
                ProcessWorker,
            )

            process = ProcessWorker(handler, options.schema)
            handler, close = process, process.close
            slot.interrupt = process.kill
        return WorkerThread(
            self._board,
            self._settler,
            self._around(handler, slot),
            slot=slot,
            finisher=self._finisher,
            close=close,
            clock=self._clock,
        )

    def _around(self, handler: Callable[[Any], Any], slot: Slot) -> Callable[[Any], Any]:
        """Return *handler* within what is to be done before and after it."""
        options, spans = self._options, spans_of(self._options.subscription)
        if options.quarantine is not None or spans is not None:
            handler = self._finisher.finishing(handler, slot)  # they end when all is done
        if options.quarantine is not None:
            handler = guarded(
                handler, options.quarantine, counts_redeliveries=options.redelivery == LETTERS
            )
        return handler if spans is None else spans.traced(handler)

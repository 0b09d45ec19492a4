"""The workers of a subscriber, of the kind that its handler needs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pulsar_retry.consumer.clock import SYSTEM, Clock
from pulsar_retry.observe.tracing import spans_of
from pulsar_retry.pull.board import Board
from pulsar_retry.pull.guarding import guarded, guarded_async
from pulsar_retry.pull.options import LOOP, PROCESSES, Options
from pulsar_retry.pull.settling import LETTERS, Settler
from pulsar_retry.pull.workers import WorkerThread


def hire(
    options: Options,
    board: Board,
    settler: Settler,
    clock: Clock = SYSTEM,
    *,
    lost: Callable[[], None],
) -> list[threading.Thread]:
    """Start the workers of a subscriber; return the threads on which handlers are called.

    *lost* is called if an event loop that is not theirs ends under the workers.
    """
    assert options.handler is not None  # noqa: S101 - it was checked
    if options.workers == LOOP:
        from pulsar_retry.pull.async_workers import LoopWorkers  # noqa: PLC0415 - brings asyncio

        handler = options.handler
        if options.quarantine is not None:
            handler = guarded_async(
                handler,
                options.quarantine,
                counts_redeliveries=options.redelivery == LETTERS,
            )
        if (spans := spans_of(options.subscription)) is not None:
            handler = spans.traced_async(handler)
        workers = LoopWorkers(
            board,
            settler,
            handler,
            options.concurrency,
            valve=options.valve,
            around=options.around,
            clock=clock,
        )
        if options.loop is not None:
            workers.run_on(options.loop, lost)
            return []
        thread = workers.thread()
        thread.start()
        return [thread]
    crew = [_worker(options, board, settler, clock) for _ in range(options.concurrency)]
    for worker in crew:
        worker.thread.start()
    return [worker.thread for worker in crew]


def _worker(options: Options, board: Board, settler: Settler, clock: Clock) -> WorkerThread:
    if options.workers == PROCESSES:
        from pulsar_retry.pull.process_workers import ProcessWorker  # noqa: PLC0415 - few need it

        process = ProcessWorker(options.handler, options.schema)
        return WorkerThread(
            board,
            settler,
            _guarded(process, options),
            interrupt=process.kill,
            close=process.close,
            clock=clock,
        )
    assert options.handler is not None  # noqa: S101 - it was checked
    return WorkerThread(board, settler, _guarded(options.handler, options), clock=clock)


def _guarded(handler: Callable[[Any], Any], options: Options) -> Callable[[Any], Any]:
    if options.quarantine is not None:
        handler = guarded(
            handler, options.quarantine, counts_redeliveries=options.redelivery == LETTERS
        )
    spans = spans_of(options.subscription)
    return handler if spans is None else spans.traced(handler)

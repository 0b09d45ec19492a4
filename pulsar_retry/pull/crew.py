"""The workers of a subscriber, of the kind that its handler needs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pulsar_retry.observe.tracing import spans_of
from pulsar_retry.pull.engine.hand import Hand, Slot
from pulsar_retry.pull.engine.settler import Settler
from pulsar_retry.pull.options import LOOP, PROCESSES, Options
from pulsar_retry.pull.workers.returned import Finisher
from pulsar_retry.pull.workers.threads import WorkerThread
from pulsar_retry.runtime.clock import SYSTEM, Clock

if TYPE_CHECKING:
    import asyncio

    from pulsar_retry.pull.workers.loop import LoopWorkers


class Crew:
    """The workers of one subscriber.

    Attributes:
        threads: The threads on which handlers are called.
    """

    def __init__(
        self,
        options: Options,
        hand: Hand,
        settler: Settler,
        clock: Clock = SYSTEM,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the workers.

        Args:
            options: The options of the subscriber.
            hand: Where messages are taken from.
            settler: Settles the messages.
            clock: The clock.
            loop: The event loop for ``async def`` handlers. None: they get a loop of their own.
            lost: Called if the caller's event loop ends too early.
        """
        assert options.handler is not None  # noqa: S101 - it was checked
        self._options = options
        self._handler = options.handler
        self._hand = hand
        self._settler = settler
        self._clock = clock
        self._finisher = Finisher(hand, loop, lost)
        self.threads: list[threading.Thread] = []
        self._crew: list[WorkerThread] = []
        self._on_loop: LoopWorkers | None = None
        if options.workers == LOOP:
            self._start_on_loop(loop, lost)
        else:
            crew = [self._worker() for _ in range(options.concurrency)]
            hand.slots.extend(worker.slot for worker in crew)
            for worker in crew:
                self._start(worker)

    # -- as the supervisor sees them --------------------------------------------------------------

    def replace(self, slot: Slot) -> None:
        """Replace the worker of *slot* by another one."""
        if self._on_loop is not None:
            self._on_loop.replace(slot)
            return
        worker = self._worker()
        self._hand.replace(slot, worker.slot)
        self._start(worker)

    def dead(self) -> list[tuple[Slot, BaseException]]:
        """Return workers whose thread has ended with an error, and forget them."""
        ended = [worker for worker in self._crew if not worker.thread.is_alive()]
        for worker in ended:
            self._crew.remove(worker)
            self.threads.remove(worker.thread)
        return [(worker.slot, worker.error) for worker in ended if worker.error is not None]

    def lost(self) -> BaseException | None:
        """Return the error that has stopped all workers; None if they can continue."""
        if self._on_loop is None:
            return None
        if self._on_loop.error is None and not all(each.is_alive() for each in self.threads):
            return RuntimeError("its thread has ended")
        return self._on_loop.error

    def ask(self, answer: Callable[[], None]) -> bool:
        """Have *answer* called on the event loop of the workers; tell whether they have one."""
        return self._on_loop is not None and self._on_loop.call(answer)

    def _start(self, worker: WorkerThread) -> None:
        worker.thread.start()  # first: `dead` forgets a thread that is not alive
        self._crew.append(worker)
        self.threads.append(worker.thread)

    def close(self) -> None:
        """Release the finisher, which the workers share. Close the queue first."""
        self._finisher.close()

    def _start_on_loop(
        self, loop: asyncio.AbstractEventLoop | None, lost: Callable[[], None]
    ) -> None:
        from pulsar_retry.pull.workers.loop import LoopWorkers  # noqa: PLC0415 - brings asyncio

        options, handler = self._options, self._handler
        if options.admission is None:  # a dispatcher's handler never returns an awaitable
            handler = self._finisher.finishing_async(handler)
        if (spans := spans_of(options.subscription)) is not None:
            handler = spans.traced_async(handler)
        workers = self._on_loop = LoopWorkers(
            self._hand,
            self._settler,
            handler,
            options.concurrency,
            admission=options.admission,
            around=options.around,
            clock=self._clock,
        )
        if loop is not None:
            workers.run_on(loop, lost)
            return
        thread = workers.thread()
        thread.start()
        self.threads.append(thread)

    def _worker(self) -> WorkerThread:
        options, slot = self._options, Slot()
        handler, close = self._handler, None
        if options.workers == PROCESSES:
            from pulsar_retry.pull.workers.processes import (  # noqa: PLC0415 - few need it
                ProcessWorker,
            )

            process = ProcessWorker(handler, options.schema, self._settler.handle.facts)
            handler, close = process, process.close
            slot.interrupt = process.kill
        return WorkerThread(
            self._hand,
            self._settler,
            self._around(handler, slot),
            slot=slot,
            finisher=self._finisher,
            close=close,
            clock=self._clock,
        )

    def _around(self, handler: Callable[[Any], Any], slot: Slot) -> Callable[[Any], Any]:
        """Return *handler* inside the span of tracing, if any."""
        spans = spans_of(self._options.subscription)
        if spans is None:
            return handler
        # The span includes the awaitable that the handler returns.
        return spans.traced(self._finisher.finishing(handler, slot))

"""The workers of a subscriber. Those that hang or have died are replaced, up to a limit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pulsar_retry.errors import WorkersLostError
from pulsar_retry.observe.tracing import spans_of
from pulsar_retry.pull.engine.hand import Hand, Held, Slot
from pulsar_retry.pull.engine.settler import Settler
from pulsar_retry.pull.options import LOOP, PROCESSES, Options
from pulsar_retry.pull.workers.returned import Finisher
from pulsar_retry.pull.workers.threads import WorkerThread
from pulsar_retry.runtime.clock import SYSTEM, Clock

if TYPE_CHECKING:
    import asyncio

    from pulsar_retry.pull.workers.loop import LoopWorkers

_log = logging.getLogger("pulsar_retry")

#: Seconds that a handler has to end after it was interrupted.
_GRACE = 5.0

#: Seconds without an answer after which an event loop counts as blocked.
_SILENT = 5.0

#: If the loop is blocked for these seconds plus the lease's `max_total`, the subscription ends.
_PATIENCE = 5.0

#: Seconds after which a blocked event loop is logged as an error.
_LOG_BLOCKED_AFTER = 60.0

#: The lowest limit of replaced workers, if no limit is set.
LEAST_CAP = 32


class Crew:
    """The workers of one subscriber, of the kind that its handler needs.

    Only `abandoned` and `problems` may be called from any thread.

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
        assert options.handler is not None  # it was checked
        self._options = options
        self._handler = options.handler
        self._hand = hand
        self._settler = settler
        self._clock = clock
        self._finisher = Finisher(hand, loop, lost)
        self._cap = options.lease.max_abandoned or max(LEAST_CAP, options.concurrency)
        self._patience = options.lease.max_total + _PATIENCE
        self._late_since: dict[Slot, float] = {}
        self._abandoned: list[Slot] = []
        self._deaths = 0
        self._asked_at: float | None = None
        self._silent = 0.0
        self._warn_at = _SILENT
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

    # -- supervision ------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Replace workers that hang or have died; end the subscription if that does not help."""
        if self._hand.closed:
            return
        self._abandoned = [slot for slot in self._abandoned if slot.work is not None]
        self._look_at_handlers(now)
        self._replace_dead_workers()
        self._look_at_the_loop()
        if (error := self._lost()) is not None:
            self._end(f"the event loop of the handlers has ended ({error!r})", error)

    def abandoned(self) -> int:
        """Return how many handlers still run although their lease has expired. Thread-safe."""
        slots = [*self._abandoned, *self._hand.slots]
        return sum(slot.work is not None and slot.work is slot.expired for slot in slots)

    def problems(self) -> list[str]:
        """Return the current problems, in words. Thread-safe."""
        found = []
        if count := self.abandoned():
            found.append(
                f"{count} handlers have not returned after their lease (at most {self._cap} may)"
            )
        if self._silent >= _SILENT:
            found.append(f"a handler has blocked the event loop for {self._silent:.0f} s")
        return found

    def _look_at_handlers(self, now: float) -> None:
        late = {}
        for slot in list(self._hand.slots):
            if slot.work is None or slot.work is not slot.expired:
                continue
            since = late[slot] = self._late_since.get(slot, now)
            if slot.interrupt is not None and now - since < _GRACE:
                continue
            if len(self._abandoned) >= self._cap:
                self._end(f"more than {self._cap} handlers have not returned after their lease")
                return
            if slot.retire():
                del late[slot]
                self._abandoned.append(slot)
                text = (
                    "a handler has not returned after its lease, and its worker is replaced (%d of "
                    "at most %d)"
                )
                _log.warning(text, len(self._abandoned), self._cap, extra=self._facts())
                self._replace(slot)
        self._late_since = late

    def _replace_dead_workers(self) -> None:
        """Replace dead workers and redeliver their messages; too many end the subscription."""
        for slot, error in self._dead():
            self._deaths += 1
            _log.error("a worker has died and is replaced", exc_info=error, extra=self._facts())
            if (item := slot.work) is not None and slot.may_settle(item):
                self._settler.come_back(Held.of(item), error)
            if self._deaths > self._cap:
                self._end(f"more than {self._cap} workers have died", error)
                return
            self._replace(slot)

    def _look_at_the_loop(self) -> None:
        now = time.monotonic()  # the loop is blocked in real time
        if self._asked_at is not None:
            self._silent = now - self._asked_at
            if self._silent >= self._warn_at:
                self._warn_at *= 2
                level = logging.WARNING if self._silent < _LOG_BLOCKED_AFTER else logging.ERROR
                text = (
                    "a handler has blocked the event loop for %.0f s, and no other message is "
                    "handled: run blocking code with asyncio.to_thread, or use a handler that is "
                    "def"
                )
                _log.log(level, text, self._silent, extra=self._facts())
            if self._silent >= self._patience:
                self._end(f"a handler has blocked the event loop for {self._silent:.0f} s")
            return
        self._asked_at = now  # set before asking: the answer may come at once
        if self._on_loop is None or not self._on_loop.call(self._answer):
            self._asked_at = None

    def _answer(self) -> None:
        self._asked_at, self._silent, self._warn_at = None, 0.0, _SILENT

    def _end(self, text: str, cause: BaseException | None = None) -> None:
        if self._settler.fatal is None:
            error = WorkersLostError(text)
            error.__cause__ = cause
            self._settler.fatal = error
            self._hand.notify()

    def _facts(self) -> dict[str, str]:
        counters = self._settler.handle.watch.counters
        return {"topic": counters.topic, "subscription": counters.subscription}

    # -- workers ----------------------------------------------------------------------------------

    def _replace(self, slot: Slot) -> None:
        """Replace the worker of *slot* by another one."""
        if self._on_loop is not None:
            self._on_loop.replace(slot)
            return
        worker = self._worker()
        self._hand.replace(slot, worker.slot)
        self._start(worker)

    def _dead(self) -> list[tuple[Slot, BaseException]]:
        """Return workers whose thread has ended with an error, and forget them."""
        ended = [worker for worker in self._crew if not worker.thread.is_alive()]
        for worker in ended:
            self._crew.remove(worker)
            self.threads.remove(worker.thread)
        return [(worker.slot, worker.error) for worker in ended if worker.error is not None]

    def _lost(self) -> BaseException | None:
        """Return the error that has stopped all workers; None if they can continue."""
        if self._on_loop is None:
            return None
        if self._on_loop.error is None and not all(each.is_alive() for each in self.threads):
            return RuntimeError("its thread has ended")
        return self._on_loop.error

    def _start(self, worker: WorkerThread) -> None:
        worker.thread.start()  # first: `_dead` forgets a thread that is not alive
        self._crew.append(worker)
        self.threads.append(worker.thread)

    def close(self) -> None:
        """Release the finisher, which the workers share. Close the queue first."""
        self._finisher.close()

    def _start_on_loop(
        self, loop: asyncio.AbstractEventLoop | None, lost: Callable[[], None]
    ) -> None:
        from pulsar_retry.pull.workers.loop import LoopWorkers  # brings asyncio

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
            from pulsar_retry.pull.workers.processes import (  # few need it
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

"""The workers of a subscriber. Those that hang are replaced, up to a limit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pulsar_retry.errors import WorkersLostError, shown
from pulsar_retry.observe.tracing import spans_of
from pulsar_retry.pull.engine.hand import Hand, Slot
from pulsar_retry.pull.engine.settler import Settler
from pulsar_retry.pull.options import LOOP, PROCESSES, Options
from pulsar_retry.pull.workers.threads import start_thread
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
        self._cap = options.lease.max_abandoned or max(LEAST_CAP, options.concurrency)
        self._patience = options.lease.max_total + _PATIENCE
        self._abandoned: list[Slot] = []
        self._asked_at: float | None = None
        self._silent = 0.0
        self._warn_at = _SILENT
        self._on_loop: LoopWorkers | None = None
        if options.workers == LOOP:
            self._start_on_loop(loop, lost)
        else:
            hand.slots.extend(Slot() for _ in range(options.concurrency))
            for slot in hand.slots:
                self._start_thread(slot)

    # -- supervision ------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Replace workers that hang; end the subscription if that does not help."""
        if self._hand.closed:
            return
        self._abandoned = [slot for slot in self._abandoned if slot.work is not None]
        self._look_at_handlers(now)
        self._look_at_the_loop()

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
        for slot in list(self._hand.slots):
            if slot.work is None or slot.work is not slot.expired:
                continue
            if slot.interrupt is not None and now - slot.seen_at < _GRACE:
                continue
            if len(self._abandoned) >= self._cap:
                self._end(f"more than {self._cap} handlers have not returned after their lease")
                return
            if slot.retire():
                self._abandoned.append(slot)
                text = (
                    "a handler has not returned after its lease, and its worker is replaced (%d of "
                    "at most %d)"
                )
                _log.warning(text, len(self._abandoned), self._cap, extra=self._facts())
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
        slots = self._hand.slots
        slots[slots.index(slot)] = fresh = Slot()
        if self._on_loop is None:
            self._start_thread(fresh)
        else:
            self._on_loop.replace(slot, fresh)

    def _died(self, error: BaseException) -> None:
        """End the subscription: a worker has ended, or the event loop of all. Thread-safe."""
        what = "a worker" if self._on_loop is None else "the event loop of the handlers"
        self._end(f"{what} has ended ({shown(error, repr)})", error)

    def _start_on_loop(
        self, loop: asyncio.AbstractEventLoop | None, lost: Callable[[], None]
    ) -> None:
        from pulsar_retry.pull.workers.loop import LoopWorkers  # brings asyncio

        options, handler = self._options, self._handler
        if (spans := spans_of(options.subscription)) is not None:
            handler = spans.traced_async(handler)
        workers = self._on_loop = LoopWorkers(
            self._hand,
            self._settler,
            handler,
            options.concurrency,
            admission=options.admission,
            around=options.around,
            died=self._died,
            clock=self._clock,
        )
        workers.start(loop, lost)

    def _start_thread(self, slot: Slot) -> None:
        options, handler = self._options, self._handler
        close: Callable[[], None] | None = None
        if options.workers == PROCESSES:
            from pulsar_retry.pull.workers.processes import ProcessWorker  # few need it

            process = ProcessWorker(handler, options.schema, self._settler.handle.facts)
            handler, close = process, process.close
            slot.interrupt = process.kill
        if (spans := spans_of(options.subscription)) is not None:
            handler = spans.traced(handler)
        start_thread(
            self._hand,
            self._settler,
            handler,
            slot=slot,
            died=self._died,
            close=close,
            clock=self._clock,
        )

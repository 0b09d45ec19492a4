"""Workers for ``async def`` handlers: many at a time on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any

from pulsar_retry.policy.outcomes import outcome_of
from pulsar_retry.pull.engine.ending import contained
from pulsar_retry.pull.engine.hand import HANDLED_BY, AdmissionControl, Hand, Slot
from pulsar_retry.pull.engine.settler import Settler
from pulsar_retry.runtime.clock import SYSTEM, Clock
from pulsar_retry.runtime.upstream import Message
from pulsar_retry.wire.owner import Recipient

#: When fewer messages than this are ready, more are received, if the admission control allows it.
_LOW = 32

#: The number of threads on which failures are settled.
_SETTLERS = 8

#: The subscription whose messages a handler gets.
RECIPIENT: ContextVar[Recipient] = ContextVar("RECIPIENT")


class LoopWorkers:
    """Workers that handle *concurrency* messages at a time on one event loop."""

    def __init__(
        self,
        hand: Hand,
        settler: Settler,
        handler: Callable[[Any], Awaitable[Any]],
        concurrency: int,
        *,
        died: Callable[[BaseException], None],
        admission: AdmissionControl | None = None,
        around: AbstractAsyncContextManager[object] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Make workers; they do not run yet.

        Args:
            hand: Where messages are taken from.
            settler: Settles the messages.
            handler: Called with each message.
            concurrency: How many messages are handled at a time.
            died: Called with an error that ends them too early.
            admission: Decides when messages are let out. None lets them out at once.
            around: Entered on the loop before the first message, and left after the last one.
            clock: It is notified when a worker begins and ends to wait.
        """
        self._clock = clock
        self._hand = hand
        self._settler = settler
        self._handler = handler
        self._admission = admission
        hand.is_one_thread = True
        if admission is not None:
            hand.low = max(2, min(_LOW, concurrency // 2))
        self._around = around or contextlib.nullcontext()
        self._slots = [Slot() for _ in range(concurrency)]
        hand.slots.extend(self._slots)
        for slot in self._slots:
            clock.begin(slot)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._replacements: list[asyncio.Future[None]] = []
        self._died = died
        self._pool = ThreadPoolExecutor(_SETTLERS, "pulsar-retry-settling")
        self._lost: Callable[[], None] = _do_nothing

    def start(self, loop: asyncio.AbstractEventLoop | None, lost: Callable[[], None]) -> None:
        """Run the workers on *loop*, or without it on a loop and a thread of their own.

        *lost* is called if *loop* ends before they do. Thread-safe.
        """
        if loop is None:
            threading.Thread(target=self._run, name="pulsar-retry-loop", daemon=True).start()
            return
        self._lost = lost
        work = self._work()
        try:
            running = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError:  # the loop is closed
            work.close()
            lost()
            return

        def ended(running: Future[None]) -> None:
            if self._hand.closed:
                return
            if running.cancelled() or (error := running.exception()) is None:
                lost()
            else:
                self._died(error)

        running.add_done_callback(ended)

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:  # noqa: BLE001 - it ends the subscription
            self._died(error)

    async def _work(self) -> None:
        HANDLED_BY.set(self._hand)
        RECIPIENT.set(self._settler.handle.plan.recipient)
        self._loop = asyncio.get_running_loop()
        try:
            async with self._around:
                await asyncio.gather(*(self._handle_all(slot) for slot in self._slots))
                while self._replacements:
                    await self._replacements.pop()
        finally:
            self._pool.shutdown(wait=False)

    def replace(self, slot: Slot, fresh: Slot) -> None:
        """Start a worker for *fresh*, because that of *slot* hangs. Thread-safe."""
        self._clock.begin(fresh)

        def begin() -> None:
            self._replacements.append(asyncio.ensure_future(self._handle_all(fresh)))

        self._clock.end(slot)
        self.call(begin)

    def call(self, function: Callable[[], None]) -> bool:
        """Have *function* called on the loop; tell whether that is possible. Thread-safe."""
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # it has ended
            return False
        return self._loop is not None

    async def _handle_all(self, slot: Slot) -> None:
        """Do what a worker thread does."""
        try:
            await self._handle_until_closed(slot)
        finally:
            self._clock.end(slot)

    async def _handle_until_closed(self, slot: Slot) -> None:
        hand, admission, loop = self._hand, self._admission, asyncio.get_running_loop()
        awake = asyncio.Event()

        def wake() -> None:
            if not hand.closed:
                self._clock.begin(slot)
            try:
                loop.call_soon_threadsafe(awake.set)
            except RuntimeError:  # the loop has ended
                self._clock.end(slot)
                self._lost()

        while not (hand.closed or slot.retired):
            if not hand.ready:
                slot.work = None
                awake.clear()
                if hand.lie_down(wake):
                    self._clock.end(slot)
                    await awake.wait()
                continue
            if admission is not None and admission.may_begin() < 1:
                slot.work = None
                awake.clear()
                hand.idle.append(wake)  # the receiving thread wakes it when there is room
                if not hand.closed:
                    self._clock.end(slot)
                    await awake.wait()
                continue
            if (message := self._take_down()) is None:
                continue
            await self._settle(slot, message, self._begun(slot, message))

    def _take_down(self) -> Message | None:
        """Take the next message that was let out; return None if there is none any more."""
        hand = self._hand
        if len(hand.ready) == hand.low > 0:
            hand.notify()
        try:
            return hand.ready.popleft()
        except IndexError:
            return None

    def _begun(self, slot: Slot, message: Message) -> Awaitable[Any]:
        """Start to handle *message*; return the awaitable."""
        slot.work = message
        if self._admission is not None:
            # The handler of a dispatcher has its own time-out and is never interrupted, so it needs
            # no task.
            return self._handler(message)
        # The handler has its own task, so that an expired lease cancels it and not the worker.
        loop = asyncio.get_running_loop()
        task = loop.create_task(contained(self._handler, message))

        def interrupt() -> None:
            with contextlib.suppress(RuntimeError):  # as above
                loop.call_soon_threadsafe(task.cancel)

        slot.interrupt = interrupt
        return task

    async def _settle(self, slot: Slot, message: Message, handling: Awaitable[Any]) -> None:
        settler = self._settler
        try:
            result = await handling
            outcome = None if result is None else outcome_of(result)
        except BaseException as error:
            task = asyncio.current_task()
            if self._admission is None and task is not None and task.cancelling():
                raise  # the worker is cancelled: its loop ends, and no attempt has failed
            await self._failed(slot, message, error)
            return
        if outcome is not None:
            await self._failed(slot, message, outcome)
            return
        if message.place is not None or slot.watched is message:
            settler.succeeded(slot, message)
            return
        try:  # as a worker thread
            settler.consumer.acknowledge(message)
            self._hand.acknowledged.append(message._message.length())
        except Exception as error:  # noqa: BLE001 - the consumer is closed: it is redelivered
            settler.not_settled(message, error)

    async def _failed(self, slot: Slot, message: Message, error: BaseException) -> None:
        # A hand-off may block, for example while the producer of letters is made. It does not use
        # the pool of the loop, because handlers use that pool: their work there may wait for
        # messages like this one.
        slot.interrupt = None  # its task would keep the error, and so all that the handler had
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._pool, self._settler.failed, slot, message, error)


def _do_nothing() -> None:
    """Do nothing, because the workers' own loop ends together with them."""
